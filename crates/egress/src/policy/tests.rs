use arenite_model::{NetworkPolicy, NetworkRule};

use super::*;
use crate::Protocol;

fn compile(json: &str) -> CompiledPolicy {
    CompiledPolicy::compile(&serde_json::from_str(json).unwrap()).unwrap()
}

const GET: Seen<'_> = Seen::Http { method: "GET", path: "/" };

/// `name`, or an address.
fn target(text: &str) -> Target<'_> {
    text.parse().map_or(Target::Name(text), Target::Address)
}

fn check(rule: &str, cases: &[(&str, u16, Seen<'_>, bool)]) {
    let policy = compile(&format!(r#"{{"allow": [{rule}]}}"#));
    for (host, port, seen, allowed) in cases {
        let decision = policy.decide(target(host), *port, *seen);
        assert_eq!(decision.allowed, *allowed, "{rule} on {host}:{port} {seen:?}: {decision:?}");
    }
}

#[test]
fn rules_allow_what_they_say() {
    check(
        r#""PyPI.org""#,
        &[
            ("pypi.org", 443, Seen::Tls, true),
            ("pypi.org", 80, GET, true),
            ("pypi.org", 8443, Seen::Tls, false),
            ("pypi.org", 443, Seen::Tcp, false),
            ("pypi.org", 443, Seen::Udp, false),
            ("files.pypi.org", 443, Seen::Tls, false),
            ("evilpypi.org", 443, Seen::Tls, false),
            ("192.0.2.1", 443, Seen::Tls, false),
        ],
    );
    check(
        r#""*.github.com:443""#,
        &[
            ("api.github.com", 443, Seen::Tls, true),
            ("a.b.github.com", 443, Seen::Tls, true),
            ("github.com", 443, Seen::Tls, false),
            ("api.github.com", 80, GET, false),
            ("github.com.evil.example", 443, Seen::Tls, false),
            ("xgithub.com", 443, Seen::Tls, false),
        ],
    );
    check(
        r#""10.1.0.0/16:5432/tcp""#,
        &[
            ("10.1.2.3", 5432, Seen::Tcp, true),
            ("::ffff:10.1.2.3", 5432, Seen::Tcp, true),
            ("10.2.0.0", 5432, Seen::Tcp, false),
            ("10.1.2.3", 5433, Seen::Tcp, false),
            ("10.1.2.3", 5432, Seen::Udp, false),
            ("db.example", 5432, Seen::Tcp, false),
        ],
    );
    check(
        r#""1.2.3.4""#,
        &[("1.2.3.4", 443, Seen::Tcp, true), ("1.2.3.5", 443, Seen::Tcp, false), ("1.2.3.4", 22, Seen::Tcp, false)],
    );
    check(r#""example.com:53/udp""#, &[("example.com", 53, Seen::Udp, true), ("example.com", 53, Seen::Tcp, false)]);
    check(
        r#""example.com:22,8000-8100/tcp""#,
        &[("example.com", 22, Seen::Tcp, true), ("example.com", 8100, Seen::Tls, true), ("example.com", 8101, Seen::Tls, false)],
    );
    check(
        r#""*:443/https""#,
        &[("any.example", 443, Seen::Tls, true), ("any.example", 443, GET, false), ("192.0.2.1", 443, Seen::Tls, false)],
    );
    check(r#""[2001:db8::/32]:*""#, &[("2001:db8::1", 1, Seen::Tcp, true), ("2001:db9::1", 1, Seen::Tcp, false)]);
    let post = Seen::Http { method: "POST", path: "/api/x" };
    let api = Seen::Http { method: "GET", path: "/api/x" };
    check(
        r#"{"host": "api.example.com", "ports": [80, "8000-8100"], "protocol": "http", "methods": ["get"], "paths": ["/api/*"]}"#,
        &[
            ("api.example.com", 80, api, true),
            ("api.example.com", 8050, api, true),
            ("api.example.com", 80, post, false),
            ("api.example.com", 80, GET, false),
            ("api.example.com", 443, Seen::Tls, false),
        ],
    );
}

#[test]
fn the_examples_of_the_documentation_are_rules() {
    let document = include_str!("../../../../docs/EGRESS.md");
    let (_, after) = document.split_once("```json\n").unwrap();
    let (example, rest) = after.split_once("```").unwrap();
    let policy = compile(example);
    assert!(policy.decide(target("api.github.com"), 443, Seen::Tls).allowed);
    assert!(!policy.decide(target("gist.github.com"), 443, Seen::Tls).allowed);
    let (_, table) = rest.split_once("| text | allows |\n| --- | --- |\n").unwrap();
    let rules: Vec<NetworkRule> =
        table.lines().map_while(|line| line.strip_prefix("| `")?.split('`').next()).map(NetworkRule::from).collect();
    assert_eq!(rules.len(), 11);
    CompiledPolicy::compile(&NetworkPolicy { allow: rules, ..NetworkPolicy::default() }).unwrap();
}

#[test]
fn deny_wins() {
    let policy = compile(
        r#"{"allow": ["*", "*.example.com", "192.0.2.0/24"], "deny": ["bad.example.com", "*.ads.example:80", "192.0.2.7"]}"#,
    );
    for (host, port, seen, allowed) in [
        ("good.example.com", 443, Seen::Tls, true),
        ("bad.example.com", 443, Seen::Tls, false),
        ("bad.example.com", 9999, Seen::Udp, false),
        ("x.ads.example", 443, Seen::Tls, true),
        ("x.ads.example", 80, GET, false),
        ("192.0.2.8", 443, Seen::Tcp, true),
        ("192.0.2.7", 443, Seen::Tcp, false),
    ] {
        assert_eq!(policy.decide(target(host), port, seen).allowed, allowed, "{host}:{port}");
    }
    let denied = policy.decide(target("bad.example.com"), 443, Seen::Tls);
    assert_eq!((denied.rule.as_deref(), denied.reason), (Some("bad.example.com"), Reason::Denied));
    assert!(!policy.decide_query("bad.example.com").allowed);
    assert!(policy.decide_query("x.ads.example").allowed, "other ports of it are allowed");
}

#[test]
fn the_mode_observe_allows_all_but_what_is_denied() {
    let policy = compile(r#"{"mode": "observe", "allow": ["a.example"], "deny": ["b.example"]}"#);
    assert_eq!(policy.decide(target("a.example"), 443, Seen::Tls).reason, Reason::Rule);
    assert_eq!(policy.decide(target("c.example"), 1, Seen::Tcp).reason, Reason::Observe);
    assert_eq!(policy.decide(target("b.example"), 1, Seen::Tcp).reason, Reason::Denied);
}

#[test]
fn wrong_rules_are_named() {
    for rule in [
        r#""""#,
        r#""https://pypi.org/""#,
        r#""pypi.org/simple""#,
        r#""pypi.org:""#,
        r#""pypi.org:0""#,
        r#""pypi.org:65536""#,
        r#""pypi.org:+80""#,
        r#""pypi.org:90-80""#,
        r#""pypi.org:80/sctp""#,
        r#""a.*.example""#,
        r#""**""#,
        r#""*example.com""#,
        r#""evil.example\u0000.pypi.org""#,
        r#""10.0.0.0/33""#,
        r#""127.1""#,
        r#""[2001:db8::1""#,
        r#"{}"#,
        r#"{"host": "a.example", "cidr": "192.0.2.1"}"#,
        r#"{"host": "192.0.2.1"}"#,
        r#"{"cidr": "a.example"}"#,
        r#"{"host": "a.example", "ports": [0]}"#,
        r#"{"host": "a.example", "methods": ["GET"]}"#,
        r#"{"host": "a.example", "paths": ["/"], "protocol": "tcp"}"#,
        r#"{"host": "a.example", "paths": ["api"], "protocol": "http"}"#,
        r#"{"host": "a.example", "paths": ["/a?b"], "protocol": "http"}"#,
        r#"{"host": "a.example", "methods": ["G T"], "protocol": "http"}"#,
    ] {
        let policy: NetworkPolicy = serde_json::from_str(&format!(r#"{{"allow": ["a.example", {rule}]}}"#)).unwrap();
        let error = CompiledPolicy::compile(&policy).expect_err(rule);
        assert!(matches!(error, EgressError::Rule { .. }), "{rule}: {error}");
    }
    let many = NetworkPolicy { allow: vec!["a.example".into(); MAX_RULES + 1], ..NetworkPolicy::default() };
    assert!(matches!(CompiledPolicy::compile(&many), Err(EgressError::TooManyRules { .. })));
}

#[test]
fn ports_of_named_tcp_are_known() {
    let policy =
        compile(r#"{"allow": ["a.test:22,20-30/tcp", "*.b.test:31/tcp", "c.test/tcp", "10.0.0.0/8:99/tcp", "d.test:98"]}"#);
    assert_eq!(*policy.named_tcp, [(20, 31), (80, 80), (443, 443)]);
    for (port, expected) in [(19, false), (20, true), (31, true), (32, false), (443, true), (98, false), (99, false)] {
        assert_eq!(policy.has_named_tcp(port), expected, "{port}");
    }
    assert!(compile(r#"{"allow": ["*:*/tcp", "a.test:1/tcp"]}"#).has_named_tcp(u16::MAX));
}

/// A generator that needs no crate (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % most as u64).unwrap()
    }

    fn choose<'a>(&mut self, list: &[&'a str]) -> &'a str {
        list[self.below(list.len())]
    }

    fn name(&mut self) -> String {
        let labels = 1 + self.below(3);
        (0..labels).map(|_| self.choose(&["a", "b", "c"])).collect::<Vec<_>>().join(".")
    }

    fn rule(&mut self) -> String {
        let host = match self.below(4) {
            0 => self.name(),
            1 => format!("*.{}", self.name()),
            2 => format!("10.{}.0.0/{}", self.below(4), 8 + self.below(25)),
            _ => self.choose(&["*", "10.1.2.3", "a.b"]).to_owned(),
        };
        let ports = self.choose(&["", ":443", ":80,22", ":20-100", ":*"]);
        format!("{host}{ports}{}", self.choose(&["", "/tcp", "/udp", "/http", "/https"]))
    }
}

/// One rule as the documentation explains it, by comparing texts.
fn naive_match(rule: &str, is_deny: bool, host: &str, port: u16, seen: Seen<'_>) -> bool {
    let protocol = ["tcp", "udp", "https", "http"].into_iter().find(|p| rule.ends_with(&format!("/{p}")));
    let rest = rule.strip_suffix(&protocol.map(|p| format!("/{p}")).unwrap_or_default()).unwrap();
    let (pattern, ports) = rest.split_once(':').unwrap_or((rest, if is_deny { "*" } else { "80,443" }));
    let has_port = ports == "*"
        || ports.split(',').any(|p| {
            let (first, last) = p.split_once('-').unwrap_or((p, p));
            (first.parse::<u16>().unwrap()..=last.parse().unwrap()).contains(&port)
        });
    let address: Option<std::net::IpAddr> = host.parse().ok();
    let net: Option<IpNet> = pattern.parse().ok().or(pattern.parse::<std::net::IpAddr>().ok().map(IpNet::from));
    let has_host = match (address, net) {
        (Some(address), Some(net)) => net.trunc().contains(&address),
        (None, None) => match pattern.strip_prefix('*') {
            Some("") => true,
            Some(suffix) => host.ends_with(suffix),
            None => host == pattern,
        },
        _ => false,
    };
    let has_protocol = match protocol {
        None => matches!(seen, Seen::Tls | Seen::Http { .. }) || is_deny || (net.is_some() && seen == Seen::Tcp),
        Some("tcp") => seen != Seen::Udp,
        Some("udp") => seen == Seen::Udp,
        Some("http") => matches!(seen, Seen::Http { .. }),
        Some(_) => seen == Seen::Tls,
    };
    // DNS and QUIC pass only where a rule names their ports, and QUIC only by address.
    let has_udp_port = match port {
        443 if net.is_none() => false,
        53 | 443 => ports.split(',').any(|p| p == port.to_string()) && rest.contains(':'),
        _ => rest.contains(':'),
    };
    has_port && has_host && has_protocol && (seen != Seen::Udp || is_deny || has_udp_port)
}

#[test]
fn compiled_policies_agree_with_a_plain_reading() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut allowed = 0;
    for _ in 0..400 {
        let allow: Vec<String> = (0..random.below(12)).map(|_| random.rule()).collect();
        let deny: Vec<String> = (0..random.below(4)).map(|_| random.rule()).collect();
        let rules = |list: &[String]| list.iter().map(|r| NetworkRule::Text(r.clone())).collect();
        let policy = NetworkPolicy { allow: rules(&allow), deny: rules(&deny), ..NetworkPolicy::default() };
        let compiled = CompiledPolicy::compile(&policy).unwrap();
        for _ in 0..50 {
            let host = if random.below(2) == 0 {
                random.name()
            } else {
                format!("10.{}.{}.{}", random.below(4), random.below(4), random.below(5))
            };
            let port = [22, 53, 80, 100, 443, 8080][random.below(6)];
            let seen = [Seen::Tls, GET, Seen::Tcp, Seen::Udp][random.below(4)];
            let any = |list: &[String], is_deny| list.iter().any(|rule| naive_match(rule, is_deny, &host, port, seen));
            let expected = any(&allow, false) && !any(&deny, true);
            assert_eq!(
                compiled.decide(target(&host), port, seen).allowed,
                expected,
                "{host}:{port} {seen:?} allow {allow:?} deny {deny:?}"
            );
            allowed += usize::from(expected);
        }
    }
    assert!((1_000..19_000).contains(&allowed), "both answers have to occur: {allowed}");
}

#[test]
fn udp_needs_a_rule_with_its_port() {
    check(
        r#""192.0.2.0/24:123/udp""#,
        &[("192.0.2.9", 123, Seen::Udp, true), ("192.0.2.9", 124, Seen::Udp, false), ("192.0.2.9", 123, Seen::Tcp, false)],
    );
    check(r#"{"cidr": "192.0.2.9", "ports": [3478], "protocol": "udp"}"#, &[("192.0.2.9", 3478, Seen::Udp, true)]);
    for all in [r#""192.0.2.9:*/udp""#, r#""192.0.2.9:1-65535/udp""#, r#""*:*/udp""#] {
        let host = if all.starts_with("\"*") { "a.example" } else { "192.0.2.9" };
        check(all, &[(host, 123, Seen::Udp, true), (host, 53, Seen::Udp, false), (host, 443, Seen::Udp, false)]);
    }
    check(r#""192.0.2.9:53,443/udp""#, &[("192.0.2.9", 53, Seen::Udp, true), ("192.0.2.9", 443, Seen::Udp, true)]);
    check(r#""a.example:53,443/udp""#, &[("a.example", 53, Seen::Udp, true), ("a.example", 443, Seen::Udp, false)]);
    assert!(compile(r#"{"allow": ["192.0.2.9:53/udp"]}"#).allows_other_dns());
    assert!(!compile(r#"{"allow": ["192.0.2.9:*/udp", "192.0.2.9:53"]}"#).allows_other_dns());
    for rule in ["a.example/udp", "192.0.2.9/udp", "a.example:443/udp", "*:123,443/udp"] {
        let policy = compile(&format!(r#"{{"allow": ["{rule}"]}}"#));
        assert!(matches!(policy.check(), Err(EgressError::Rule { .. })), "{rule}");
        compile(&format!(r#"{{"deny": ["{rule}"]}}"#)).check().unwrap();
    }
    for rule in ["a.example:123/udp", "a.example:400-500/udp", "192.0.2.9:443/udp"] {
        compile(&format!(r#"{{"allow": ["{rule}"]}}"#)).check().unwrap();
    }
}

#[test]
fn udp_is_denied_as_tcp_is_and_not_observed() {
    let policy = compile(r#"{"allow": ["192.0.2.0/24:*/udp", "a.example:123/udp"], "deny": ["192.0.2.7", "192.0.2.8:123/udp"]}"#);
    for (address, port, allowed) in [("192.0.2.7", 123, false), ("192.0.2.8", 123, false), ("192.0.2.8", 124, true)] {
        assert_eq!(policy.decide(target(address), port, Seen::Udp).allowed, allowed, "{address}:{port}");
    }
    assert!(policy.denies_address("192.0.2.7".parse().unwrap(), 123, Seen::Udp).is_some());
    assert!(policy.has_named_udp(123) && !policy.has_named_udp(124) && !policy.has_named_tcp(123));
    let observe = compile(r#"{"mode": "observe"}"#);
    assert_eq!(observe.decide(target("192.0.2.9"), 123, Seen::Udp), Decision::refused(Reason::NoRule));
    let udp = r#"{"allow": ["192.0.2.0/24:123/udp"]}"#;
    let floors = [
        (r#"{"mode": "observe"}"#, true),
        (r#"{"mode": "observe", "deny": ["192.0.2.9"]}"#, false),
        (r#"{"allow": ["192.0.2.9:123/udp"]}"#, true),
        (r#"{"allow": ["192.0.2.9:123"]}"#, false),
    ];
    for (floor, allowed) in floors {
        assert_eq!(under(udp, floor).decide(target("192.0.2.9"), 123, Seen::Udp).allowed, allowed, "{floor}");
    }
}

fn under(policy: &str, floor: &str) -> CompiledPolicy {
    compile(policy).with_floor(Some(&serde_json::from_str(floor).unwrap())).unwrap()
}

#[test]
fn a_policy_allows_nothing_that_its_floor_refuses() {
    let floor = r#"{"allow": ["a.example", "*.b.example:443", "10.0.0.0/8"], "deny": ["x.b.example"]}"#;
    let policy = under(r#"{"allow": ["*", "11.0.0.0/8"], "deny": ["a.example:80"]}"#, floor);
    let decide = |host, port| policy.decide(target(host), port, Seen::Tls);
    assert!(decide("a.example", 443).allowed && decide("y.b.example", 443).allowed);
    for (host, port, reason, rule) in [
        ("c.example", 443, Reason::Floor, None),
        ("y.b.example", 80, Reason::Floor, None),
        ("11.1.1.1", 443, Reason::Floor, None),
        ("x.b.example", 443, Reason::Floor, Some("x.b.example")),
        ("a.example", 80, Reason::Denied, Some("a.example:80")),
        ("10.1.1.1", 443, Reason::NoRule, None),
    ] {
        let decision = decide(host, port);
        assert_eq!((decision.allowed, decision.reason, decision.rule.as_deref()), (false, reason, rule), "{host}:{port}");
    }
    assert_eq!(policy.decide_query("c.example").reason, Reason::Floor);
    assert!(policy.decide_query("a.example").allowed);
    assert_eq!(policy.denies_name("x.b.example").unwrap().reason, Reason::Floor);
    // A denial ends the search for another target of a connection; a missing rule does not.
    assert!(decide("c.example", 443).lacks_rule() && decide("x.b.example", 443).is_denied());
    let observed = under(r#"{"mode": "observe", "deny": ["c.example"]}"#, floor);
    assert!(observed.observes() && observed.decide(target("c.example"), 443, Seen::Tls).is_denied());
    assert!(compile("{}").with_floor(Some(&NetworkPolicy { allow: vec!["https://a".into()], ..Default::default() })).is_err());
}

#[test]
fn policies_and_floors_agree_with_both_alone() {
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    let mut allowed = 0;
    for _ in 0..200 {
        let mut policy = || {
            let mut rules = |most: usize| (0..random.below(most)).map(|_| NetworkRule::Text(random.rule())).collect();
            NetworkPolicy { allow: rules(16), deny: rules(3), ..NetworkPolicy::default() }
        };
        let (own, floor) = (policy(), policy());
        let both = CompiledPolicy::compile(&own).unwrap().with_floor(Some(&floor)).unwrap();
        let [own, floor] = [own, floor].map(|policy| CompiledPolicy::compile(&policy).unwrap());
        for _ in 0..50 {
            let host = if random.below(2) == 0 { random.name() } else { format!("10.{}.2.3", random.below(4)) };
            let (port, seen) = ([22, 80, 443][random.below(3)], [Seen::Tls, GET, Seen::Tcp][random.below(3)]);
            let decide = |policy: &CompiledPolicy| policy.decide(target(&host), port, seen).allowed;
            let expected = decide(&own) && decide(&floor);
            assert_eq!(decide(&both), expected, "{host}:{port} {seen:?}");
            assert_eq!(
                both.decide_query(&host).allowed,
                own.decide_query(&host).allowed && floor.decide_query(&host).allowed,
                "{host}"
            );
            allowed += usize::from(expected);
        }
    }
    assert!(allowed > 200, "both answers have to occur: {allowed}");
}

#[test]
fn ten_thousand_rules_are_as_fast_as_ten() {
    let mut allow: Vec<NetworkRule> = (0..5_000).map(|n| NetworkRule::Text(format!("host-{n}.example"))).collect();
    allow.extend((0..2_500).map(|n| NetworkRule::Text(format!("*.below-{n}.example"))));
    allow.extend((0..2_500).map(|n| NetworkRule::Text(format!("11.{}.{}.0/24", n / 250, n % 250))));
    let policy = CompiledPolicy::compile(&NetworkPolicy { allow, ..NetworkPolicy::default() }).unwrap();
    let start = std::time::Instant::now();
    for n in 0..2_500 {
        assert!(policy.decide(Target::Name(&format!("a.b.c.below-{n}.example")), 443, Seen::Tls).allowed);
        assert!(!policy.decide(Target::Name(&format!("a.b.c.host-{n}.example")), 443, Seen::Tls).allowed);
        assert!(policy.decide(target(&format!("11.{}.{}.7", n / 250, n % 250)), 443, Seen::Tcp).allowed);
    }
    // A scan would compare 75 million rules.
    assert!(start.elapsed().as_millis() < 1_000, "{:?}", start.elapsed());
}

#[test]
fn the_suggestion_allows_what_was_seen_and_no_more() {
    let seen = |name: Option<&str>, address: Option<&str>, port, protocol| Observed {
        name: name.map(str::to_owned),
        address: address.map(|a| a.parse().unwrap()),
        port,
        protocol,
    };
    let observed = [
        seen(Some("pypi.org"), Some("192.0.2.1"), 443, Protocol::Tls),
        seen(Some("pypi.org"), Some("192.0.2.1"), 443, Protocol::Tls),
        seen(Some("deb.example"), None, 80, Protocol::Http),
        seen(Some("deb.example"), None, 443, Protocol::Tls),
        seen(Some("git.example"), Some("192.0.2.2"), 22, Protocol::Tcp),
        seen(Some("git.example"), Some("192.0.2.2"), 443, Protocol::Tls),
        seen(Some("only.resolved.example"), None, 53, Protocol::Dns),
        seen(None, Some("192.0.2.9"), 9418, Protocol::Tcp),
    ];
    let rules = suggest(&observed);
    assert_eq!(
        rules,
        [
            "192.0.2.9:9418".into(),
            "deb.example".into(),
            "git.example:443".into(),
            "git.example:22/tcp".into(),
            "pypi.org:443".into()
        ] as [NetworkRule; 5]
    );
    CompiledPolicy::compile(&NetworkPolicy { allow: rules, ..NetworkPolicy::default() }).unwrap();
}

#[test]
fn postgres_with_a_secret_needs_a_rule_for_its_port() {
    for (rule, allowed) in [
        ("db.example:5432", true),
        ("db.example:5432/tcp", true),
        ("*.example:*", true),
        ("db.example", false),
        ("db.example:5432/https", false),
        ("db.example:5432/http", false),
        ("192.0.2.0/24:5432", false),
    ] {
        check(&format!("{rule:?}"), &[("db.example", 5432, Seen::Postgres, allowed)]);
    }
    for (denied, allowed) in [("db.example", false), ("db.example:5432/tcp", false), ("db.example:443", true)] {
        let policy = compile(&format!(r#"{{"allow": ["*:*"], "deny": [{denied:?}]}}"#));
        assert_eq!(policy.decide(target("db.example"), 5432, Seen::Postgres).allowed, allowed, "{denied}");
    }
}

#[test]
fn hosts_of_secrets_are_names_with_ports() {
    for (text, name, port, expected) in [
        ("A.example", "a.example", 443, true),
        ("a.example", "a.example", 80, false),
        ("a.example", "x.a.example", 443, false),
        ("a.example:8443,9000-9001", "a.example", 9001, true),
        ("a.example:8443", "a.example", 443, false),
        ("*.a.example", "x.y.a.example", 443, true),
        ("*.a.example", "a.example", 443, false),
        ("*.a.example", "xa.example", 443, false),
        ("*.a.example:*", "x.a.example", 1, true),
        ("b\u{fc}cher.example", "xn--bcher-kva.example", 443, true),
    ] {
        assert_eq!(HostPattern::parse(text, 443).unwrap().contains(name, port), expected, "{text} {name}:{port}");
    }
    for text in
        ["", "*", "*:443", "192.0.2.1", "10.0.0.0/8", "[::1]:443", "a.example/tcp", "https://a.example", "a.example:0", "a b"]
    {
        assert!(HostPattern::parse(text, 443).is_err(), "{text}");
    }
}

#[test]
fn rules_for_https_compare_requests_where_they_are_seen() {
    let rule = r#"{"host": "a.example", "protocol": "https", "methods": ["GET"], "paths": ["/api/*"]}"#;
    let get = Seen::Https { method: "GET", path: "/api/x" };
    let post = Seen::Https { method: "POST", path: "/api/x" };
    let plain = Seen::Http { method: "GET", path: "/api/x" };
    check(
        rule,
        &[
            ("a.example", 443, get, true),
            ("a.example", 443, post, false),
            ("a.example", 443, plain, false),
            ("a.example", 443, Seen::EndedTls, true),
            ("a.example", 443, Seen::Tls, false),
            ("a.example", 443, Seen::Tcp, false),
        ],
    );
    let policy = compile(&format!(r#"{{"allow": ["*"], "deny": [{rule}]}}"#));
    for (seen, allowed) in [(get, false), (post, true), (plain, true), (Seen::EndedTls, true), (Seen::Tls, false)] {
        assert_eq!(policy.decide(target("a.example"), 443, seen).allowed, allowed, "{seen:?}");
    }
    check(r#""a.example:443/http""#, &[("a.example", 443, get, false), ("a.example", 443, Seen::EndedTls, false)]);
    check(r#""a.example""#, &[("a.example", 443, get, true), ("a.example", 443, Seen::EndedTls, true)]);
    check(r#""a.example:443/tcp""#, &[("a.example", 443, get, true), ("a.example", 443, Seen::EndedTls, true)]);
}
