//! Several installations on a host, restarted servers, many sandboxes.

use std::collections::HashSet;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;

use arenite_engine::namespace::network::{Network, NetworkConfig, NetworkError, PreparedNet};
use arenite_isolation::netns;

use crate::host::*;

#[test]
fn installations_share_a_host_and_come_back_to_their_own() {
    on_a_host(|_outside| async move {
        // At the same moment.
        let (one, two) = tokio::join!(Network::open(config("one1")), Network::open(config("two2")));
        let (one, two) = (one.unwrap(), two.unwrap());
        assert_ne!(one.subnet(), two.subnet());
        assert!(matches!(Network::open(config("one1")).await.unwrap_err(), NetworkError::Running { .. }));
        let taken = NetworkConfig { subnet: Some(two.subnet()), ..config("thr3") };
        assert!(matches!(Network::open(taken).await.unwrap_err(), NetworkError::SubnetTaken { .. }));

        let kept = one.prepare().await.unwrap();
        let gone = one.prepare().await.unwrap();
        let cross = two.prepare().await.unwrap();
        in_net(&cross.netns, || serve(Ipv4Addr::UNSPECIFIED, PORT));
        let out = |net: &PreparedNet| in_net(&net.netns, || ask_address((OUTSIDE, PORT)).unwrap());
        in_net(&kept.netns, || assert_refused((cross.address, PORT)));

        // As after kill -9: the server is gone, the sandboxes stay.
        let subnet = one.subnet();
        drop(one);
        assert_eq!(out(&kept), WAN);
        let newcomer = Network::open(config("new4")).await.unwrap();
        assert!(![subnet, two.subnet()].contains(&newcomer.subnet()), "it took the subnet of living sandboxes");
        newcomer.close(true).await;

        let one = Network::open(config("one1")).await.unwrap();
        assert_eq!(one.subnet(), subnet);
        assert_eq!(out(&kept), WAN);
        let removed = one.adopt(&[kept.index]).await;
        assert_eq!(removed.len(), 1, "{removed:?}");
        assert!(removed[0].contains(&gone.index.to_string()));
        assert_eq!(out(&kept), WAN);
        for _ in 0..4 {
            let net = one.prepare().await.unwrap();
            assert_ne!(net.index, kept.index);
            assert_eq!(out(&net), WAN);
        }

        one.close(true).await;
        two.close(true).await;
        for tag in ["one1", "two2", "new4"] {
            assert!(links(tag).is_empty(), "{:?}", links(tag));
        }
        assert_eq!(run("nft", &["list", "tables"]), "");
        assert!(!run("ip", &["route"]).contains("10.2"));
    });
}

#[test]
fn a_sandbox_without_a_link_is_connected_again() {
    let tag = "back5";
    // The host that it had before, with both ends of its link.
    let mut left = None;
    on_a_host(|_outside| {
        let left = &mut left;
        async move {
            let network = Network::open(config(tag)).await.unwrap();
            let net = network.prepare().await.unwrap();
            assert!(network.unconnected(vec![net.index]).await.unwrap().is_empty());
            *left = Some(net);
        }
    });
    let net = left.unwrap();
    on_a_host(|_outside| async move {
        let network = Network::open(config(tag)).await.unwrap();
        network.adopt(&[net.index]).await;
        assert_eq!(network.unconnected(vec![net.index]).await.unwrap(), [net.index]);
        let out = || in_net(&net.netns, || ask_address((OUTSIDE, PORT)));
        // First instead of a link into the other host, then without any.
        for _ in 0..2 {
            network.reconnect(net.index, net.netns.try_clone().unwrap()).await.unwrap();
            assert!(network.unconnected(vec![net.index]).await.unwrap().is_empty());
            assert_eq!(out().unwrap(), WAN);
            run("ip", &["link", "delete", &links(tag).into_iter().find(|name| !name.ends_with("gw")).unwrap()]);
            out().unwrap_err();
        }
        network.close(true).await;
    });
}

#[test]
fn a_subnet_that_the_host_uses_is_passed_over() {
    on_a_host(|_outside| async move {
        ip("route add 10.209.128.0/17 via 198.51.100.1");
        ip("route add 10.210.3.4/32 via 198.51.100.1");
        ip("address add 10.211.0.1/24 dev lo");
        let network = Network::open(config("used")).await.unwrap();
        assert_eq!(network.subnet(), "10.212.0.0/16".parse().unwrap());
        drop(network);
        // A VPN's wide route leaves no range free, so only specific routes count.
        ip("route add 10.0.0.0/8 via 198.51.100.1");
        let other = Network::open(config("wide")).await.unwrap();
        assert_eq!(other.subnet(), "10.213.0.0/16".parse().unwrap());
        for (wrong, tag) in [("10.5.0.0/17", "fine"), ("10.5.0.0/16", "x"), ("10.5.0.0/16", "Upper")] {
            let config = NetworkConfig { subnet: Some(wrong.parse().unwrap()), ..config(tag) };
            assert!(Network::open(config).await.is_err());
        }
    });
}

#[test]
fn many_are_prepared_at_once_and_vanish_with_their_namespace() {
    on_a_host(|_outside| async move {
        let network = Arc::new(Network::open(config("many")).await.unwrap());
        let waiting: Vec<_> = (0..40)
            .map(|_| {
                let network = network.clone();
                tokio::spawn(async move { network.prepare().await.unwrap() })
            })
            .collect();
        let mut made = Vec::new();
        for net in waiting {
            made.push(net.await.unwrap());
        }
        for _ in 0..10 {
            // Ready means ready: the very first packet arrives, both ways.
            let net = network.prepare().await.unwrap();
            let inside = in_net(&net.netns, || UdpSocket::bind("0.0.0.0:7").unwrap());
            let host = UdpSocket::bind((net.gateway, 0)).unwrap();
            inside.set_read_timeout(Some(LONG)).unwrap();
            host.send_to(b"ping", (net.address, 7)).unwrap();
            let (length, from) = inside.recv_from(&mut [0; 8]).unwrap();
            assert_eq!((length, from), (4, host.local_addr().unwrap()));
            host.set_read_timeout(Some(LONG)).unwrap();
            inside.send_to(b"pong", from).unwrap();
            assert_eq!(host.recv(&mut [0; 8]).unwrap(), 4);
            made.push(net);
        }
        let addresses: HashSet<_> = made.iter().map(|n| n.address).collect();
        assert_eq!(addresses.len(), 50);
        assert_eq!(links("many").len(), 51, "the gateway's and one each");
        for net in &made {
            in_net(&net.netns, || assert_eq!(ask_address((OUTSIDE, PORT)).unwrap(), WAN));
        }
        let indexes: Vec<u32> = made.iter().map(|n| n.index).collect();
        drop(made);
        indexes.iter().for_each(|i| network.release(*i));
        eventually("links of dropped namespaces vanish", || links("many") == ["armany-gw"]);
        let routes = run("ip", &["route"]);
        assert!(!routes.contains("armany-"), "{routes}");
        // The most recently released address is used last.
        assert_eq!(network.prepare().await.unwrap().index, 52);
    });
}

#[test]
fn what_stands_in_the_way_is_reported() {
    on_a_host(|_outside| async move {
        // A new network namespace starts with what the host has.
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "0").unwrap();
        let network = Network::open(NetworkConfig { resolvers: None, ..config("warn") }).await.unwrap();
        let warnings = network.warnings().await;
        assert!(warnings.iter().any(|w| w.contains("ip_forward was 0")), "{warnings:?}");
        assert_eq!(std::fs::read_to_string("/proc/sys/net/ipv4/ip_forward").unwrap().trim(), "1");
        let found = |warnings: Vec<String>, text: &str| warnings.iter().any(|w| w.contains(text));
        assert!(!found(warnings, "drops forwarded"));
        run("nft", &["add table ip filter; add chain ip filter FORWARD { type filter hook forward priority 0; policy drop; }"]);
        assert!(found(network.warnings().await, "ip filter FORWARD drops forwarded"));
        run("nft", &["flush ruleset"]);
        assert!(found(network.warnings().await, "arenite_warn is gone"));
        // The next start puts it back.
        drop(network);
        let network = Network::open(config("warn")).await.unwrap();
        let warnings = network.warnings().await;
        assert!(!found(warnings, "is gone"));
        assert!(found(network.warnings().await, "no resolver is known"));
    });
}

#[test]
fn every_namespace_is_the_threads_own() {
    let before = std::fs::read_link("/proc/thread-self/ns/net").unwrap();
    let (net, inside) = netns::create(|_| std::fs::read_link("/proc/thread-self/ns/net")).unwrap();
    assert_ne!(before, inside);
    assert_eq!(in_net(&net, || std::fs::read_link("/proc/thread-self/ns/net").unwrap()), inside);
    assert_eq!(std::fs::read_link("/proc/thread-self/ns/net").unwrap(), before);
    let failed = netns::create(|_| -> io::Result<()> { Err(ErrorKind::OutOfMemory.into()) });
    assert_eq!(failed.unwrap_err().kind(), ErrorKind::OutOfMemory);
    let panicked = netns::create(|_| -> io::Result<()> { panic!("on purpose") });
    assert!(panicked.unwrap_err().to_string().contains("panicked"));
}
