//! The addresses that a sandbox reaches, and that reach it.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, TcpStream, ToSocketAddrs, UdpSocket};
use std::time::Duration;

use arenite_engine::namespace::network::{Network, NetworkConfig};

use crate::host::*;

#[test]
fn open_reaches_the_outside_and_nothing_private() {
    on_a_host(|outside| async move {
        let network = Network::open(config("poli")).await.unwrap();
        let net = network.prepare().await.unwrap();
        let other = network.prepare().await.unwrap();
        assert_eq!(net.gateway, Ipv4Addr::new(10, 209, 0, 1));
        assert_ne!(net.address, other.address);
        serve(Ipv4Addr::UNSPECIFIED, 9999);
        serve(Ipv4Addr::LOCALHOST, 9998);
        in_net(&other.netns, || serve(Ipv4Addr::UNSPECIFIED, 9997));
        // A port that the host publishes: the service behind it is as closed as the host.
        run(
            "nft",
            &["add table ip published; \
               add chain ip published pre { type nat hook prerouting priority dstnat; }; \
               add chain ip published post { type nat hook postrouting priority srcnat; }; \
               add rule ip published pre tcp dport 7777 dnat to 203.0.113.5:8080; \
               add rule ip published post ct status dnat masquerade"],
        );

        // The refused addresses exist, and the host reaches them.
        for address in PRIVATE {
            assert_eq!(ask_address((address, PORT)).unwrap(), WAN, "{address}");
        }
        assert!(ask_address((WAN, 9999)).is_ok());
        assert!(ask_address((other.address, 9997)).is_ok());
        in_net(&outside.netns, || {
            assert!(ask_address((WAN, 9999)).is_ok());
            assert!(ask_address((WAN, 7777)).is_ok(), "the published port works");
        });

        in_net(&net.netns, || {
            assert_eq!(ask_address((OUTSIDE, PORT)).unwrap(), WAN, "not translated");
            assert!(ask_address(("203.0.113.5", PORT)).is_ok());
            for address in PRIVATE {
                assert_refused((address, PORT));
            }
            assert_refused((WAN, 9999));
            assert_refused((WAN, 7777));
            assert_refused((net.gateway, 9999));
            assert_refused((net.gateway, 9998));
            assert_refused((Ipv4Addr::LOCALHOST, 9998));
            assert_refused((other.address, 9997));
            assert_refused((other.address, 9996));
            assert!(TcpStream::connect_timeout(&("2001:db8::1", PORT).to_socket_addrs().unwrap().next().unwrap(), LONG).is_err());
            assert!(UdpSocket::bind("0.0.0.0:0").unwrap().send_to(b"x", "255.255.255.255:9").is_err());
        });

        // No connection comes in from outside, neither to a sandbox nor to the DNS forwarder.
        in_net(&net.netns, || serve(Ipv4Addr::UNSPECIFIED, PORT));
        assert!(ask_address((net.address, PORT)).is_ok(), "the host may");
        in_net(&outside.netns, || {
            for to in [(net.address, PORT), (net.gateway, 53)] {
                let result = TcpStream::connect_timeout(&to.into(), Duration::from_millis(400));
                assert_eq!(result.unwrap_err().kind(), ErrorKind::TimedOut, "{to:?}");
            }
        });
    });
}

#[test]
fn ports_of_the_host_are_open_where_the_operator_says_so() {
    on_a_host(|outside| async move {
        let opened = NetworkConfig { host_ports: vec![9998, 9996], ..config("port") };
        let network = Network::open(opened).await.unwrap();
        let net = network.prepare().await.unwrap();
        let other = network.prepare().await.unwrap();
        serve(Ipv4Addr::LOCALHOST, 9998);
        serve(Ipv4Addr::LOCALHOST, 9999);
        serve(Ipv4Addr::UNSPECIFIED, 9996);
        in_net(&other.netns, || serve(Ipv4Addr::UNSPECIFIED, 9998));
        in_net(&net.netns, || {
            assert_eq!(ask_address((net.gateway, 9998)).unwrap(), net.address, "the service sees who calls");
            assert_eq!(ask_address((net.gateway, 9996)).unwrap(), net.address);
            assert_refused((net.gateway, 9999));
            assert_refused((WAN, 9996));
            assert_refused((Ipv4Addr::LOCALHOST, 9998));
            assert_refused((other.address, 9998));
        });
        in_net(&outside.netns, || {
            for to in [(net.gateway, 9998), (WAN, 9998)] {
                assert!(TcpStream::connect_timeout(&to.into(), Duration::from_millis(400)).is_err(), "{to:?}");
            }
        });
        network.close(false).await;
        drop(network);
        let network = Network::open(config("port")).await.unwrap();
        network.adopt(&[net.index, other.index]).await;
        in_net(&net.netns, || assert_refused((net.gateway, 9998)));
    });
}

#[test]
fn a_sandbox_cannot_lie_about_its_address() {
    on_a_host(|outside| async move {
        let network = Network::open(config("spoof")).await.unwrap();
        let net = network.prepare().await.unwrap();
        let victim = network.prepare().await.unwrap();
        let heard = in_net(&outside.netns, || UdpSocket::bind((OUTSIDE, 5353)).unwrap());
        heard.set_read_timeout(Some(LONG)).unwrap();
        in_net(&net.netns, || {
            for address in [victim.address, Ipv4Addr::new(203, 0, 113, 77)] {
                // Only the host's root can do this; a sandbox's root has no rights over its network.
                ip(&format!("address add {address}/32 dev eth0"));
                let liar = UdpSocket::bind((address, 0)).unwrap();
                liar.send_to(b"lie", (OUTSIDE, 5353)).unwrap();
            }
            let honest = UdpSocket::bind((net.address, 0)).unwrap();
            honest.send_to(b"truth", (OUTSIDE, 5353)).unwrap();
        });
        // They would have arrived first: the link preserves their order.
        let mut buffer = [0; 16];
        let (length, from) = heard.recv_from(&mut buffer).unwrap();
        assert_eq!((&buffer[..length], from.ip()), (&b"truth"[..], IpAddr::V4(WAN)));
    });
}

#[test]
fn one_sandbox_cannot_fill_the_hosts_connection_table() {
    on_a_host(|_outside| async move {
        let network = Network::open(config("count")).await.unwrap();
        let (greedy, modest) = (network.prepare().await.unwrap(), network.prepare().await.unwrap());
        in_net(&greedy.netns, || {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            for port in 10_000..15_000 {
                // Those beyond the limit are refused, some of them with an answer.
                let _ = socket.send_to(b"x", (OUTSIDE, port));
            }
        });
        let tracked: u32 = std::fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_count").unwrap().trim().parse().unwrap();
        assert!((4000..4200).contains(&tracked), "{tracked} connections are tracked");
        in_net(&greedy.netns, || assert_refused((OUTSIDE, PORT)));
        in_net(&modest.netns, || assert_eq!(ask_address((OUTSIDE, PORT)).unwrap(), WAN));
    });
}

#[test]
fn a_prepared_network_is_ready_and_closed_means_loopback_only() {
    on_a_host(|_outside| async move {
        let network = Network::open(config("ready")).await.unwrap();
        let net = network.prepare().await.unwrap();
        let closed = Network::prepare_closed().unwrap();
        let settings = || {
            let read = |path: &str| std::fs::read_to_string(path).unwrap();
            assert_eq!(read("/proc/sys/net/ipv4/ip_unprivileged_port_start").trim(), "0");
            assert_eq!(
                read("/proc/sys/net/ipv4/ping_group_range").split_ascii_whitespace().collect::<Vec<_>>(),
                ["0", "2147483647"]
            );
            let v6 = read("/proc/thread-self/net/if_inet6");
            assert_eq!(v6.lines().count(), 1, "{v6}");
            assert!(v6.trim_end().ends_with(" lo"), "{v6}");
            for loopback in [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)] {
                let listener = TcpListener::bind((loopback, 80)).unwrap();
                TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            }
        };
        in_net(&net.netns, || {
            settings();
            let eth0 = run("ip", &["-o", "link", "show", "eth0"]);
            assert!(eth0.contains(" mtu 1400 ") && eth0.contains("state UP"), "{eth0}");
            let out = run("ip", &["route", "get", "198.51.100.1"]);
            assert!(out.contains(&format!("via {} dev eth0 src {}", net.gateway, net.address)), "{out}");
        });
        in_net(&closed, || {
            settings();
            let error = ask_address((OUTSIDE, PORT)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NetworkUnreachable);
            assert_eq!(run("ip", &["-o", "link"]).lines().filter(|l| l.contains("eth0")).count(), 0);
        });
    });
}

#[test]
fn exceptions_win_over_what_is_denied_but_open_no_host() {
    on_a_host(|_outside| async move {
        let network = Network::open(NetworkConfig {
            allowed: vec!["10.77.0.0/24".parse().unwrap(), "198.51.100.0/24".parse().unwrap(), "10.209.0.0/16".parse().unwrap()],
            denied: [config("allow").denied, vec!["203.0.113.0/24".parse().unwrap(), "198.51.100.0/24".parse().unwrap()]]
                .concat(),
            ..config("allow")
        })
        .await
        .unwrap();
        let net = network.prepare().await.unwrap();
        let other = network.prepare().await.unwrap();
        in_net(&other.netns, || serve(Ipv4Addr::UNSPECIFIED, 9997));
        serve(Ipv4Addr::UNSPECIFIED, 9999);
        in_net(&net.netns, || {
            assert_eq!(ask_address(("10.77.0.1", PORT)).unwrap(), WAN);
            assert_eq!(ask_address((OUTSIDE, PORT)).unwrap(), WAN);
            assert_refused(("192.168.5.5", PORT));
            assert_refused(("203.0.113.5", PORT));
            assert_refused((WAN, 9999));
            assert_refused((other.address, 9997));
        });
    });
}
