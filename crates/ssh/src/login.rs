//! What is signed to log in (RFC 4252, section 7, and OpenSSH's extension with the host key).

use crate::wire::Reader;

const USERAUTH_REQUEST: u8 = 50;
const SERVICE: &str = "ssh-connection";
const METHOD: &str = "publickey";
const HOST_BOUND_METHOD: &str = "publickey-hostbound-v00@openssh.com";
/// Bytes of a session's id: a digest, of SHA-1 to SHA-512.
pub(crate) const SESSION_ID: std::ops::RangeInclusive<usize> = 20..=64;
/// Bytes of a name.
const MAX_USER: usize = 255;

/// The request of a user to log in to a server, in one session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Login<'a> {
    pub(crate) session_id: &'a [u8],
    pub(crate) user: &'a str,
    pub(crate) algorithm: &'a str,
    pub(crate) key: &'a [u8],
    /// The server that the signature is for, if the server takes such requests.
    pub(crate) host_key: Option<&'a [u8]>,
}

impl<'a> Login<'a> {
    /// None: the data is something else.
    pub(crate) fn parse(data: &'a [u8]) -> Option<Self> {
        let mut reader = Reader::new(data);
        let session_id = reader.string().filter(|id| SESSION_ID.contains(&id.len()))?;
        reader.byte().filter(|kind| *kind == USERAUTH_REQUEST)?;
        // It is shown to people.
        let is_name = |user: &&str| (1..=MAX_USER).contains(&user.len()) && !user.contains(char::is_control);
        let user = reader.text().filter(is_name)?;
        reader.text().filter(|service| *service == SERVICE)?;
        let is_host_bound = match reader.text()? {
            METHOD => false,
            HOST_BOUND_METHOD => true,
            _ => return None,
        };
        reader.boolean().filter(|has_signature| *has_signature)?;
        let (algorithm, key) = (reader.text()?, reader.string()?);
        let host_key = if is_host_bound { Some(reader.string()?) } else { None };
        reader.end()?;
        Some(Self { session_id, user, algorithm, key, host_key })
    }
}
