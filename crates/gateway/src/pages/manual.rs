//! `/llms.txt`: a short manual for agents, with the address at which they reach the server.

use axum::body::Body;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Response};

use crate::exchange::{Answered, Exchange};

const TEXT: &str = include_str!("llms.txt");

pub(crate) async fn serve(exchange: &mut Exchange) -> Answered {
    let prefix = exchange.path.raw.strip_suffix("/llms.txt").unwrap_or("");
    let text = text(exchange.context.base_url(), prefix);
    let mut response = Response::new(Body::from(text));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    Ok(response)
}

fn text(base_url: &str, prefix: &str) -> String {
    let whose = match prefix.strip_prefix("/sandbox/") {
        Some(name) => format!("These addresses are of the sandbox `{name}`."),
        None => "These addresses are of the sandbox called `default`, which the first call makes; for one of your own put \
                 `/sandbox/{name}` before `/v1`."
            .to_owned(),
    };
    TEXT.replace("{WHOSE}", &whose).replace("{SERVER}", base_url).replace("{BASE}", &format!("{base_url}{prefix}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_names_the_address_that_it_was_read_at() {
        let whole = text("https://box.example:444", "/sandbox/demo");
        assert!(whole.contains("https://box.example:444/sandbox/demo/v1/bash/exec"));
        assert!(whole.contains("sandbox `demo`") && whole.contains("https://box.example:444/api/v2/sandboxes"));
        let plain = text("http://localhost:8080", "");
        assert!(plain.contains("http://localhost:8080/v1/bash/exec") && plain.contains("called `default`"));
        for text in [whole, plain] {
            assert!(!text.contains("{BASE}") && !text.contains("{SERVER}") && !text.contains("{WHOSE}"));
        }
    }
}
