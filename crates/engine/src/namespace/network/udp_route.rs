//! The route of redirected UDP. The rules hand datagrams to the egress proxy with the address that they were sent to, so the host
//! has to take them as its own: marked ones from sandboxes are looked up in a table in which every address is local.

use std::io;

use ipnet::Ipv4Net;

use super::rtnl::Rtnl;

/// Set by the rules on redirected datagrams, and on nothing else.
pub(super) const MARK: u32 = 0x0a7e_0000;
/// Rules of an installation that earlier starts may have left.
const MOST: usize = 64;

/// A routing table for each installation. Tags are up to six letters and digits, of which each has its number.
fn table(tag: &str) -> u32 {
    let digit =
        |byte: u8| u32::from(if byte.is_ascii_digit() { byte - b'0' } else { byte.wrapping_sub(b'a').wrapping_add(10) }) + 1;
    tag.bytes().fold(0, |number: u32, byte| number.wrapping_mul(37).wrapping_add(digit(byte))).wrapping_add(0x1000_0000)
}

pub(super) fn set_up(host: &mut Rtnl, tag: &str, subnet: Ipv4Net) -> io::Result<()> {
    remove(host, tag);
    let table = table(tag);
    host.add_local_route(table)?;
    host.add_mark_rule(subnet, MARK, table)
}

/// Does nothing where there is none.
pub(super) fn remove(host: &mut Rtnl, tag: &str) {
    let table = table(tag);
    for _ in 0..MOST {
        // An error says that it was the last one.
        if host.delete_mark_rule(MARK, table).is_err() {
            break;
        }
    }
    // It is not there.
    let _ = host.delete_local_route(table);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn installations_have_their_own_tables() {
        let tags = ["0000", "00000", "000000", "zzzz", "zzzzzz", "abcd", "abcde", "bbcd"];
        let mut tables: Vec<u32> = tags.iter().map(|tag| table(tag)).collect();
        assert!(tables.iter().all(|table| *table > 0x1000_0000), "low numbers are the kernel's and the operator's");
        tables.sort_unstable();
        tables.dedup();
        assert_eq!(tables.len(), tags.len());
    }
}
