//! The first message of TLS, from which the name of the server is read (SNI).
//!
//! The reader takes bytes as they come, in any pieces and over several records, and is strict: what two parsers could understand
//! in different ways is malformed. It keeps nothing but the message itself, up to 16 KiB.
//!
//! Encrypted ClientHello: browsers send a meaningless `encrypted_client_hello` extension when they have no key (GREASE), which
//! looks like a real one on purpose. With GREASE, the visible name is the real one. A real one needs a key, which programs take
//! from HTTPS records of DNS, and our resolver answers these without records. So the extension is noted, and the visible name is
//! what counts. A program that has a key from elsewhere reaches another server behind the same front as the allowed name, as with
//! domain fronting.

use std::collections::HashSet;

use crate::name::normalize_name;

/// Maximum size of the message with the headers of its records.
const MAX_BYTES: usize = 16 << 10;
const RECORD_HEADER: usize = 5;
const MAX_RECORD: usize = 16 << 10;
const HANDSHAKE_HEADER: usize = 4;

const HANDSHAKE_RECORD: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: u16 = 0;
const ALPN: u16 = 16;
const ENCRYPTED_CLIENT_HELLO: u16 = 0xfe0d;
const HOST_NAME: u8 = 0;
const OUTER: u8 = 0;

/// What a ClientHello says about its server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClientHello {
    /// The server's name, normalised.
    pub server_name: Option<String>,
    pub alpn: Vec<String>,
    /// Whether it has an encrypted ClientHello, which may be GREASE.
    pub has_ech: bool,
}

/// What the bytes so far are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HelloStep {
    /// The start of a ClientHello.
    More,
    Hello(ClientHello),
    NotTls,
    Malformed(&'static str),
}

/// Reads a ClientHello incrementally.
#[derive(Debug, Default)]
pub struct HelloReader {
    header: Vec<u8>,
    /// Bytes of the current record that are still to come.
    left: usize,
    message: Vec<u8>,
    total: usize,
}

impl HelloReader {
    /// Takes the next bytes. After any other answer than [`HelloStep::More`], the reader is done.
    pub fn push(&mut self, mut bytes: &[u8]) -> HelloStep {
        while let [first, ..] = *bytes {
            if self.total >= MAX_BYTES {
                return HelloStep::Malformed("the first message has more than 16 KiB");
            }
            if self.left == 0 {
                if self.total == 0 && first != HANDSHAKE_RECORD {
                    return HelloStep::NotTls;
                }
                let taken = bytes.len().min(RECORD_HEADER - self.header.len());
                self.header.extend(&bytes[..taken]);
                self.total += taken;
                bytes = &bytes[taken..];
                if let Err(reason) = self.check_header() {
                    return HelloStep::Malformed(reason);
                }
                continue;
            }
            let taken = bytes.len().min(self.left).min(MAX_BYTES - self.total);
            self.message.extend(&bytes[..taken]);
            self.left -= taken;
            self.total += taken;
            bytes = &bytes[taken..];
            match self.check_message() {
                Ok(None) => {}
                Ok(Some(hello)) => return HelloStep::Hello(hello),
                Err(reason) => return HelloStep::Malformed(reason),
            }
        }
        HelloStep::More
    }

    fn check_header(&mut self) -> Result<(), &'static str> {
        if self.header[0] != HANDSHAKE_RECORD {
            return Err("another record comes before the first message ends");
        }
        if self.header.get(1).is_some_and(|major| *major != 3) {
            return Err("the record's version is not of TLS");
        }
        if let [_, _, _, high, low] = *self.header {
            self.left = usize::from(u16::from_be_bytes([high, low]));
            self.header.clear();
            if self.left == 0 || self.left > MAX_RECORD {
                return Err("a record is empty or has more than 16 KiB");
            }
        }
        Ok(())
    }

    fn check_message(&mut self) -> Result<Option<ClientHello>, &'static str> {
        if self.message[0] != CLIENT_HELLO {
            return Err("the first message is no ClientHello");
        }
        let [_, a, b, c, body @ ..] = &*self.message else { return Ok(None) };
        let length = usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c);
        if length > MAX_BYTES - HANDSHAKE_HEADER - RECORD_HEADER {
            return Err("the first message has more than 16 KiB");
        }
        if body.len() < length {
            return Ok(None);
        }
        // A client waits for the answer. More in this record would be for another parser.
        if body.len() > length || self.left > 0 {
            return Err("the record goes on after the first message");
        }
        parse_hello(body).map(Some)
    }
}

fn parse_hello(body: &[u8]) -> Result<ClientHello, &'static str> {
    const CUT: &str = "the first message is cut off";
    let mut fields = Fields(body);
    fields.take(2 + 32).ok_or(CUT)?;
    let session = fields.short_list().ok_or(CUT)?;
    let ciphers = fields.list().ok_or(CUT)?;
    let compressions = fields.short_list().ok_or(CUT)?;
    if session.len() > 32 || ciphers.is_empty() || ciphers.len() % 2 != 0 || compressions.is_empty() {
        return Err("the first message has fields of wrong lengths");
    }
    let mut hello = ClientHello::default();
    if fields.0.is_empty() {
        return Ok(hello);
    }
    let mut extensions = Fields(fields.list().ok_or(CUT)?);
    if !fields.0.is_empty() {
        return Err("bytes follow the extensions");
    }
    let mut seen = HashSet::new();
    while !extensions.0.is_empty() {
        let kind = extensions.number().ok_or(CUT)?;
        let content = extensions.list().ok_or(CUT)?;
        if !seen.insert(kind) {
            return Err("an extension is there twice");
        }
        match kind {
            SERVER_NAME => hello.server_name = Some(parse_server_name(content)?),
            ALPN => hello.alpn = parse_alpn(content).ok_or("the list of protocols is malformed")?,
            ENCRYPTED_CLIENT_HELLO => {
                // The inner form exists inside the encrypted one only.
                if content.first() != Some(&OUTER) {
                    return Err("the encrypted ClientHello is malformed");
                }
                hello.has_ech = true;
            }
            _ => {}
        }
    }
    Ok(hello)
}

/// Exactly one name: servers choose from several in different ways.
fn parse_server_name(content: &[u8]) -> Result<String, &'static str> {
    const WRONG: &str = "the list of server names is malformed";
    let mut fields = Fields(content);
    let mut list = Fields(fields.list().ok_or(WRONG)?);
    let kind = list.take(1).ok_or(WRONG)?;
    let name = list.list().ok_or(WRONG)?;
    if kind != [HOST_NAME] || !list.0.is_empty() || !fields.0.is_empty() {
        return Err(WRONG);
    }
    let name = std::str::from_utf8(name).map_err(|_| "the server's name is no host name")?;
    normalize_name(name).map_err(|_| "the server's name is no host name")
}

fn parse_alpn(content: &[u8]) -> Option<Vec<String>> {
    let mut fields = Fields(content);
    let mut list = Fields(fields.list()?);
    let mut protocols = Vec::new();
    while !list.0.is_empty() {
        protocols.push(String::from_utf8_lossy(list.short_list()?).into_owned());
    }
    (fields.0.is_empty() && !protocols.is_empty()).then_some(protocols)
}

/// What is left to read.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn number(&mut self) -> Option<u16> {
        self.take(2).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    /// Bytes after their length in one byte.
    fn short_list(&mut self) -> Option<&'a [u8]> {
        let length = self.take(1)?[0];
        self.take(usize::from(length))
    }

    /// Bytes after their length in two bytes.
    fn list(&mut self) -> Option<&'a [u8]> {
        let length = self.number()?;
        self.take(usize::from(length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(content: &[u8]) -> Vec<u8> {
        let mut bytes = u16::try_from(content.len()).unwrap().to_be_bytes().to_vec();
        bytes.extend(content);
        bytes
    }

    fn extension(kind: u16, content: &[u8]) -> Vec<u8> {
        [&kind.to_be_bytes()[..], &list(content)].concat()
    }

    fn server_name(name: &[u8]) -> Vec<u8> {
        extension(SERVER_NAME, &list(&[&[HOST_NAME][..], &list(name)].concat()))
    }

    fn message(extensions: &[u8]) -> Vec<u8> {
        let body = [&[3, 3][..], &[7; 32], &[0], &list(&[0x13, 1]), &[1, 0], &list(extensions)].concat();
        let length = u32::try_from(body.len()).unwrap().to_be_bytes();
        [&[CLIENT_HELLO][..], &length[1..], &body].concat()
    }

    fn record(content: &[u8]) -> Vec<u8> {
        [&[HANDSHAKE_RECORD, 3, 1][..], &list(content)].concat()
    }

    fn hello(extensions: &[u8]) -> Vec<u8> {
        record(&message(extensions))
    }

    fn read(bytes: &[u8]) -> HelloStep {
        HelloReader::default().push(bytes)
    }

    fn name(text: &str) -> HelloStep {
        HelloStep::Hello(ClientHello { server_name: Some(text.into()), ..ClientHello::default() })
    }

    #[test]
    fn the_name_is_read_however_the_bytes_are_split() {
        let extensions = [
            server_name(b"PyPI.org"),
            extension(ALPN, &list(b"\x02h2\x08http/1.1")),
            extension(ENCRYPTED_CLIENT_HELLO, &[0, 1, 2]),
        ]
        .concat();
        let expected = HelloStep::Hello(ClientHello {
            server_name: Some("pypi.org".into()),
            alpn: vec!["h2".into(), "http/1.1".into()],
            has_ech: true,
        });
        let whole = hello(&extensions);
        for at in 1..whole.len() {
            let mut reader = HelloReader::default();
            assert_eq!(reader.push(&whole[..at]), HelloStep::More, "{at}");
            assert_eq!(reader.push(&whole[at..]), expected, "{at}");
        }
        let message = message(&extensions);
        for size in [1, 2, 7, 50] {
            let records: Vec<u8> = message.chunks(size).flat_map(record).collect();
            let mut reader = HelloReader::default();
            let (last, rest) = records.split_last().unwrap();
            for byte in rest {
                assert_eq!(reader.push(&[*byte]), HelloStep::More);
            }
            assert_eq!(reader.push(&[*last]), expected, "records of {size}");
            assert_eq!(read(&records), expected);
        }
        // Early data follows in records of another type.
        assert_eq!(read(&[&hello(&server_name(b"a.example"))[..], &[20, 3, 3, 0, 1, 1, 23, 3, 3]].concat()), name("a.example"));
    }

    #[test]
    fn a_hello_without_a_name_is_one() {
        assert_eq!(read(&hello(&[])), HelloStep::Hello(ClientHello::default()));
        let body = [&[3, 3][..], &[7; 32], &[0], &list(&[0x13, 1]), &[1, 0]].concat();
        let without_extensions = record(&[&[CLIENT_HELLO, 0, 0, u8::try_from(body.len()).unwrap()][..], &body].concat());
        assert_eq!(read(&without_extensions), HelloStep::Hello(ClientHello::default()));
    }

    #[test]
    fn other_protocols_are_not_tls() {
        for bytes in [&b"GET / HTTP/1.1\r\n"[..], b"SSH-2.0-x\r\n", b"\x80\x2e\x01\x03\x01", b"\0"] {
            assert_eq!(read(bytes), HelloStep::NotTls);
        }
        assert_eq!(read(b""), HelloStep::More);
    }

    #[test]
    fn malformed_hellos_are_refused() {
        let good = server_name(b"a.example");
        let two = list(&[&[HOST_NAME][..], &list(b"a.example"), &[HOST_NAME], &list(b"b.example")].concat());
        let mut wrong_length = message(&good);
        wrong_length[3] -= 1;
        let mut server_hello = message(&good);
        server_hello[0] = 2;
        let mut cases = vec![
            hello(&[good.clone(), server_name(b"b.example")].concat()),
            hello(&[extension(99, b""), extension(99, b"")].concat()),
            hello(&extension(SERVER_NAME, &two)),
            hello(&extension(SERVER_NAME, b"")),
            hello(&extension(SERVER_NAME, &list(&[&[1][..], &list(b"a.example")].concat()))),
            hello(&extension(SERVER_NAME, &[&list(&[&[0][..], &list(b"a.example")].concat())[..], b"x"].concat())),
            hello(&extension(ALPN, b"\0\0")),
            hello(&extension(ENCRYPTED_CLIENT_HELLO, &[1])),
            hello(&extension(ENCRYPTED_CLIENT_HELLO, &[])),
            hello(&good[..good.len() - 1]),
            record(&wrong_length),
            record(&server_hello),
            record(&[&message(&good)[..], b"more"].concat()),
            vec![HANDSHAKE_RECORD, 2],
            vec![HANDSHAKE_RECORD, 3, 1, 0, 0],
            vec![HANDSHAKE_RECORD, 3, 1, 0x40, 1],
            [&record(&message(&good)[..9])[..], &[21, 3, 1]].concat(),
            record(&[CLIENT_HELLO, 1, 0, 0]),
        ];
        for host in [&b"a.example\0.pypi.org"[..], b"127.0.0.1", b"", b"a b", &[0xff]] {
            cases.push(hello(&server_name(host)));
        }
        for case in cases {
            assert!(matches!(read(&case), HelloStep::Malformed(_)), "{case:x?}: {:?}", read(&case));
        }
    }

    #[test]
    fn the_size_is_bounded() {
        let large = hello(&[server_name(b"a.example"), extension(99, &[0; 15 << 10])].concat());
        assert_eq!(read(&large), name("a.example"));
        let too_large = message(&extension(99, &[0; 16_380]));
        let records: Vec<u8> = too_large.chunks(8 << 10).flat_map(record).collect();
        assert!(matches!(read(&records), HelloStep::Malformed(_)));
        // Tiny records, which are mostly headers.
        let tiny: Vec<u8> = message(&extension(99, &[0; 8 << 10])).chunks(1).flat_map(record).collect();
        assert!(matches!(read(&tiny), HelloStep::Malformed(_)));
    }

    #[test]
    fn no_bytes_make_it_panic() {
        let whole = hello(&[server_name(b"a.example"), extension(ALPN, &list(b"\x02h2"))].concat());
        for at in 0..whole.len() {
            for value in [0, 1, 2, 0x7f, 0xff] {
                let mut bytes = whole.clone();
                bytes[at] = value;
                read(&bytes);
                read(&bytes[..at]);
            }
        }
    }
}
