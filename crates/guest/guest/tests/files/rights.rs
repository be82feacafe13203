//! Calls act as the sandbox's user, and as root with `sudo`. Only root can test that; for other users, these tests return
//! immediately.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::process::Command;

use http::StatusCode;
use serde_json::json;

use crate::guest::{Guest, Scratch, is_root};

/// A user that every image has, with an id other than root's.
const USER: &str = "nobody";
const ID: u32 = 65_534;

fn open_to_all(dir: &Scratch) {
    fs::set_permissions(&dir.0, fs::Permissions::from_mode(0o777)).unwrap();
}

#[tokio::test]
async fn without_sudo_root_files_are_closed() {
    if !is_root() {
        return;
    }
    let dir = Scratch::new();
    open_to_all(&dir);
    let guest = Guest::start_as(&dir.0, USER);
    fs::create_dir(dir.path("root")).unwrap();
    fs::set_permissions(dir.path("root"), fs::Permissions::from_mode(0o700)).unwrap();
    for (name, mode) in [("root/secret", 0o600), ("closed", 0o600), ("readable", 0o644)] {
        fs::write(dir.path(name), "root's").unwrap();
        fs::set_permissions(dir.path(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    for (operation, arguments) in [
        ("read", json!({"file": dir.path("root/secret")})),
        ("read", json!({"file": dir.path("closed")})),
        ("search", json!({"file": dir.path("closed"), "regex": "."})),
        ("write", json!({"file": dir.path("readable"), "content": "x"})),
        ("write", json!({"file": dir.path("readable"), "content": "x", "append": true})),
        ("replace", json!({"file": dir.path("readable"), "old_str": "root", "new_str": "x"})),
        ("write", json!({"file": "/etc/arenite-test", "content": "x"})),
        ("write", json!({"file": dir.path("root/new/f"), "content": "x"})),
        ("list", json!({"path": dir.path("root")})),
        ("find", json!({"path": dir.path("root"), "glob": "secret"})),
        ("str_replace_editor", json!({"command": "view", "path": dir.path("closed")})),
        ("str_replace_editor", json!({"command": "create", "path": dir.path("root/f"), "file_text": ""})),
        ("str_replace_editor", json!({"command": "insert", "path": dir.path("readable"), "insert_line": 0, "new_str": ""})),
        // The guest's own memory and environment belong to root too.
        ("read", json!({"file": format!("/proc/{}/environ", guest.pid())})),
        ("read", json!({"file": "/proc/self/environ"})),
        ("read", json!({"file": "/proc/thread-self/environ"})),
    ] {
        assert_eq!(guest.error_type(operation, arguments.clone()).await, "permission_denied", "{operation} {arguments}");
    }
    let (status, _, _) = guest.get(&format!("/v1/file/download?path={}", dir.path("closed")), &[]).await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    for path in [dir.path("root/up"), dir.path("readable")] {
        let (_, answer) = guest.upload(&[("path", None, path.as_bytes()), ("file", Some("f"), b"x")]).await;
        assert_eq!(answer["data"]["error_type"], "permission_denied", "{path}: {answer}");
        let (_, answer) = guest.upload(&[("file", Some("f"), b"x"), ("path", None, path.as_bytes())]).await;
        assert_eq!(answer["data"]["error_type"], "permission_denied", "{path}: {answer}");
    }
    assert_eq!(fs::read_to_string(dir.path("readable")).unwrap(), "root's");
    let sudo = json!({"file": dir.path("closed"), "old_str": "root's", "new_str": "changed", "sudo": true});
    guest.file("replace", sudo).await;
    let data = guest.file("read", json!({"file": dir.path("closed"), "sudo": true})).await;
    assert_eq!(data["content"], "changed");
    guest.file("search", json!({"file": dir.path("root/secret"), "regex": ".", "sudo": true})).await;
    guest.file("write", json!({"file": dir.path("root/new/f"), "content": "x", "sudo": true})).await;
    assert_eq!(fs::metadata(dir.path("root/new/f")).unwrap().uid(), 0);
    assert_eq!(dir.names(""), ["closed", "readable", "root"]);
}

#[tokio::test]
async fn what_the_user_makes_is_the_users_and_what_it_may_write_stays_whose_it_was() {
    if !is_root() {
        return;
    }
    let dir = Scratch::new();
    open_to_all(&dir);
    let guest = Guest::start_as(&dir.0, USER);
    guest.file("write", json!({"file": "d/f", "content": "x"})).await;
    guest.upload(&[("file", Some("up"), b"x")]).await;
    for name in ["d", "d/f", "up"] {
        let made = fs::metadata(dir.path(name)).unwrap();
        assert_eq!((made.uid(), made.gid()), (ID, ID), "{name}");
    }
    // Root's file, writable by all, in a directory that is writable too: it still belongs to root afterwards.
    fs::write(dir.path("shared"), "old").unwrap();
    fs::set_permissions(dir.path("shared"), fs::Permissions::from_mode(0o666)).unwrap();
    guest.file("write", json!({"file": "shared", "content": "new, longer"})).await;
    guest.file("write", json!({"file": "shared", "content": "short"})).await;
    assert_eq!(fs::read_to_string(dir.path("shared")).unwrap(), "short");
    assert_eq!(fs::metadata(dir.path("shared")).unwrap().uid(), 0);
    // The user's own file in a directory that the user can't write to: written in place.
    fs::create_dir(dir.path("closed")).unwrap();
    fs::write(dir.path("closed/own"), "old").unwrap();
    chown(dir.path("closed/own"), Some(ID), Some(ID)).unwrap();
    guest.file("write", json!({"file": "closed/own", "content": "new"})).await;
    assert_eq!(fs::read_to_string(dir.path("closed/own")).unwrap(), "new");
    let path = dir.path("closed/own");
    for parts in [
        [("path", None, path.as_bytes()), ("file", Some("f"), b"up")],
        [("file", Some("f"), b"up"), ("path", None, path.as_bytes())],
    ] {
        fs::write(&path, "before").unwrap();
        let (_, answer) = guest.upload(&parts).await;
        assert_eq!(answer["success"], true, "{answer}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "up");
    }
    assert_eq!(dir.names("closed"), ["own"]);
}

/// A separate file system of 1 MiB.
struct Small(Scratch);

impl Small {
    fn mount() -> Self {
        let dir = Scratch::new();
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=1m,mode=777", "tmpfs"]).arg(&dir.0).status();
        assert!(mounted.unwrap().success());
        Self(dir)
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0.0).status();
    }
}

#[tokio::test]
async fn a_full_disk_leaves_files_as_they_were() {
    if !is_root() {
        return;
    }
    let disk = Small::mount();
    let (dir, other) = (&disk.0, Scratch::new());
    open_to_all(&other);
    let guest = Guest::start_as(&other.0, USER);
    let file = dir.path("f");
    guest.file("write", json!({"file": file, "content": "precious"})).await;
    // Root's file, so it is written in place.
    let rooted = dir.path("rooted");
    fs::write(&rooted, "precious").unwrap();
    fs::set_permissions(&rooted, fs::Permissions::from_mode(0o666)).unwrap();
    let large = "x".repeat(2 << 20);
    for (operation, arguments) in [
        ("write", json!({"file": file, "content": large})),
        ("write", json!({"file": rooted, "content": large})),
        ("write", json!({"file": file, "content": large, "append": true})),
        ("write", json!({"file": dir.path("d/e/new"), "content": large})),
        ("str_replace_editor", json!({"command": "create", "path": dir.path("d/new"), "file_text": large})),
        ("str_replace_editor", json!({"command": "insert", "path": file, "insert_line": 0, "new_str": large})),
    ] {
        let error = guest.refused(operation, arguments).await;
        assert_eq!(
            (error["error_type"].clone(), error["errno_name"].clone()),
            (json!("no_space_left"), json!("ENOSPC")),
            "{operation}"
        );
    }
    let parts = [("path", None, file.as_bytes()), ("file", Some("f"), large.as_bytes())];
    for parts in [parts, [parts[1], parts[0]]] {
        let (status, answer) = guest.upload(&parts).await;
        assert_eq!((status, answer["data"]["error_type"].clone()), (StatusCode::OK, json!("no_space_left")), "{answer}");
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
    assert_eq!(fs::read_to_string(&rooted).unwrap(), "precious");
    assert_eq!(dir.names(""), ["f", "rooted"]);
    assert!(other.names("").is_empty());
    // An upload that started on another file system is moved over if it fits.
    let (_, answer) = guest.upload(&[("file", Some("f"), b"fits"), ("path", None, file.as_bytes())]).await;
    assert_eq!(answer["success"], true, "{answer}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "fits");
}
