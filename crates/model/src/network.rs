//! What a sandbox may reach through the egress proxy: the types that users write.
//!
//! They are only read here. `arenite-egress` compiles and checks them, because that needs parsers of names and networks.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a sandbox may reach, by name and address. `deny` wins over `allow`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NetworkPolicy {
    #[serde(default)]
    pub mode: PolicyMode,
    /// What may be reached under `allowlist`. Up to 1,000 rules together with `deny`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<NetworkRule>,
    /// What may not be reached, in both modes. A rule without ports applies to all ports here, and one without a protocol to all
    /// protocols.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deny: Vec<NetworkRule>,
}

impl NetworkPolicy {
    /// Maximum number of rules of a policy that a user writes.
    pub const MAX_RULES: usize = 1_000;

    pub fn rule_count(&self) -> usize {
        self.allow.len() + self.deny.len()
    }
}

/// What happens to connections that no rule names.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum PolicyMode {
    /// They are refused.
    #[default]
    Allowlist,
    /// TCP to public addresses passes, and is recorded, so that an allowlist can be made from it.
    Observe,
}

/// A rule: text such as `pypi.org`, `*.github.com:443`, `10.1.0.0/16:5432/tcp`, or an object.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum NetworkRule {
    /// `HOST[:PORTS][/PROTOCOL]`. HOST is a name, `*.` and a name (one or more labels below it), `*`, an address, or a network.
    /// PORTS are ports and ranges with commas between them (`443,8000-8100`), or `*`; without them 80 and 443. PROTOCOL is `tcp`,
    /// `udp`, `http`, or `https`.
    Text(String),
    Fields(RuleFields),
}

impl From<&str> for NetworkRule {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

/// A rule with all of its conditions. It has either `host` or `cidr`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RuleFields {
    /// A name, `*.` and a name (one or more labels below it), or `*`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// An address or a network, such as `192.0.2.0/24`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cidr: Option<String>,
    /// Ports and ranges; none: 80 and 443, and in `deny` all ports.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<RulePorts>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<RuleProtocol>,
    /// Methods of HTTP, such as `GET`; none: all. Needs the protocol `http`, or `https` with a host of secrets: the proxy does not
    /// see requests in other TLS, and does not allow them then.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub methods: Vec<String>,
    /// Paths of HTTP without the query; `*` stands for any text, also with slashes. None: all. Needs a protocol as `methods` does.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<String>,
}

/// A port, or a range as text such as `8000-8100`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum RulePorts {
    One(u16),
    Range(String),
}

/// What is spoken to the port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum RuleProtocol {
    /// Anything over TCP. For a name, also protocols in which the proxy sees no name, at the addresses that the sandbox's resolver
    /// gave for it.
    Tcp,
    /// UDP.
    Udp,
    /// HTTP without TLS. Each request is checked.
    Http,
    /// TLS. The name in its first message is checked, and each request to hosts of secrets.
    Https,
}

impl RuleProtocol {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Http => "http",
            Self::Https => "https",
        }
    }
}

impl fmt::Display for RuleProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The process in a sandbox that made a connection or sent a query, as the host's kernel knows it. The sandbox chose the texts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NetworkProcess {
    /// In the sandbox's own numbers.
    pub pid: u32,
    /// The name of the program, of up to 16 bytes.
    pub name: String,
    /// The start of the command line, of up to 256 bytes, with spaces between its arguments. Control characters are escaped.
    pub command: String,
}

impl NetworkProcess {
    pub const MAX_NAME: usize = 16;
    pub const MAX_COMMAND: usize = 256;

    /// From the bytes that the kernel has: a name, and arguments that end in zero bytes.
    pub fn new(pid: u32, name: &[u8], arguments: &[u8]) -> Self {
        let arguments = arguments.strip_suffix(b"\0").unwrap_or(arguments);
        let arguments: Vec<u8> = arguments.iter().map(|byte| if *byte == 0 { b' ' } else { *byte }).collect();
        let escaped = |bytes: &[u8], most| escape(&String::from_utf8_lossy(bytes), most);
        Self { pid, name: escaped(name, Self::MAX_NAME), command: escaped(&arguments, Self::MAX_COMMAND) }
    }
}

/// The text with escapes for backslashes, control characters, and characters that change how the text around them is shown. It
/// ends before the first character that does not fit.
fn escape(text: &str, most: usize) -> String {
    let mut escaped = String::new();
    for character in text.chars() {
        let is_hidden = matches!(character, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}');
        let part = if character == '\\' || character.is_control() || is_hidden {
            character.escape_default().to_string()
        } else {
            character.to_string()
        };
        if escaped.len() + part.len() > most {
            break;
        }
        escaped.push_str(&part);
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_text_or_an_object() {
        let text = r#"{"allow": ["pypi.org", {"host": "api.example.com", "ports": [80, "8000-8100"], "protocol": "http", "methods": ["GET"]}]}"#;
        let policy: NetworkPolicy = serde_json::from_str(text).unwrap();
        assert_eq!(policy.mode, PolicyMode::Allowlist);
        assert_eq!(policy.allow[0], "pypi.org".into());
        let NetworkRule::Fields(fields) = &policy.allow[1] else { panic!("not an object") };
        assert_eq!(fields.ports, [RulePorts::One(80), RulePorts::Range("8000-8100".into())]);
        assert_eq!(fields.protocol, Some(RuleProtocol::Http));
        let again: NetworkPolicy = serde_json::from_str(&serde_json::to_string(&policy).unwrap()).unwrap();
        assert_eq!(again, policy);
    }

    #[test]
    fn unknown_fields_are_refused() {
        for text in [r#"{"allowed": []}"#, r#"{"allow": [{"host": "a.example", "path": "/"}]}"#, r#"{"mode": "open"}"#] {
            assert!(serde_json::from_str::<NetworkPolicy>(text).is_err(), "{text}");
        }
    }

    #[test]
    fn texts_of_processes_are_bounded_and_escaped() {
        let process = NetworkProcess::new(7, b"curl", b"curl\0-s\0http://a.example/\0");
        assert_eq!((process.name.as_str(), process.command.as_str()), ("curl", "curl -s http://a.example/"));
        let process = NetworkProcess::new(7, b"a\x1b[2J\n\\\xff", "x\u{202e}\0\0y\r".as_bytes());
        assert_eq!((process.name.as_str(), process.command.as_str()), ("a\\u{1b}[2J\\n\\\\", "x\\u{202e}  y\\r"));
        let long = NetworkProcess::new(7, &[b'n'; 100], &"ü".repeat(4_096).into_bytes());
        assert_eq!((long.name.len(), long.command.len()), (16, 256));
        let escapes = NetworkProcess::new(7, &[7; 100], &[7; 4_096]);
        assert!(escapes.name.len() <= 16 && escapes.command.len() <= 256 && escapes.command.ends_with('}'), "{escapes:?}");
        assert_eq!(NetworkProcess::new(7, b"", b""), NetworkProcess { pid: 7, name: String::new(), command: String::new() });
    }
}
