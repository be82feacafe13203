//! The browser's proxy configuration.

/// A PAC file that routes the browser through the sandbox's forward proxy while that has rules, and directly otherwise.
pub(super) fn file(proxy: Option<&str>) -> String {
    let way = match proxy {
        Some(address) => format!("PROXY {address}"),
        None => "DIRECT".to_owned(),
    };
    format!(
        "function FindProxyForURL(url, host) {{\n  \
           if (isPlainHostName(host) || host === \"127.0.0.1\" || host === \"[::1]\" || dnsDomainIs(host, \".localhost\")) \
           return \"DIRECT\";\n  \
           return \"{way}\";\n\
         }}\n"
    )
}
