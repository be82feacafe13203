//! What a container's engine gives a guest that starts without a server: environment, directory, user, and addresses.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::Path;

use arenite_guest_runtime::users::User;
use tokio::net::TcpListener;

pub(crate) type Environment = BTreeMap<String, String>;

/// The variables of this process that are UTF-8.
pub(crate) fn environment() -> Environment {
    std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?))).collect()
}

/// The image's directory. None: it has none, which makes it the root.
pub(crate) fn directory() -> Option<String> {
    let directory = std::env::current_dir().ok()?.into_os_string().into_string().ok()?;
    (directory != "/").then_some(directory)
}

/// The user and the group of this process.
pub(crate) fn ids() -> (u32, u32) {
    (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
}

/// Decides who runs commands. None: root, which becomes the image's user as in other sandboxes. Others can't become another
/// user, so it is `uid:gid`, with the user's home directory in `env`, or one that exists.
pub(crate) fn user(env: &mut Environment, (uid, gid): (u32, u32)) -> Option<String> {
    let home = env.remove("HOME");
    if uid == 0 {
        return None;
    }
    env.remove("USER");
    let name = format!("{uid}:{gid}");
    let missing = User::configured(&name).is_none_or(|user| !user.with_home().home.is_dir());
    let given = home.filter(|home| home != "/" && Path::new(home).is_dir());
    env.extend(given.or(missing.then(|| "/tmp".to_owned())).map(|home| ("HOME".to_owned(), home)));
    Some(name)
}

/// Listens on all addresses of the container.
pub(crate) async fn listen(port: u16) -> io::Result<TcpListener> {
    match TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).await {
        Ok(listener) => Ok(listener),
        // Without IPv6.
        Err(_) => TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await,
    }
}
