use std::io::Write;

use bytes::Bytes;

use super::*;

fn store(dir: &tempfile::TempDir) -> Store {
    let address = format!("file://{}", dir.path().display());
    Store::open(address.parse().unwrap()).unwrap()
}

async fn whole(store: &Store, name: &str) -> Option<Vec<u8>> {
    let mut pieces = store.get(name).await.unwrap()?;
    let mut bytes = Vec::new();
    while let Some(piece) = pieces.next().await {
        bytes.extend_from_slice(&piece.unwrap());
    }
    Some(bytes)
}

async fn put(store: &Store, name: &str, bytes: &[u8]) {
    store.put(name, Content::Bytes(Bytes::copy_from_slice(bytes))).await.unwrap();
}

#[tokio::test]
async fn objects_are_stored_listed_in_order_and_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(&dir);
    assert_eq!(store.list("a", None, 10).await.unwrap(), []);
    for (name, bytes) in [("a/c", "3"), ("a/b/d", "22"), ("a/b/c", "1"), ("b/x", "4")] {
        put(&store, name, bytes.as_bytes()).await;
    }
    let names = |listed: Vec<Object>| listed.into_iter().map(|object| object.name).collect::<Vec<_>>();
    assert_eq!(names(store.list("a", None, 10).await.unwrap()), ["a/b/c", "a/b/d", "a/c"]);
    assert_eq!(names(store.list("a", None, 2).await.unwrap()), ["a/b/c", "a/b/d"]);
    assert_eq!(names(store.list("a", Some("a/b/c"), 10).await.unwrap()), ["a/b/d", "a/c"]);
    assert_eq!(store.list("a/b", Some("a/b/c"), 1).await.unwrap(), [Object { name: "a/b/d".to_owned(), bytes: 2 }]);
    put(&store, "a/c", b"new").await;
    assert_eq!(whole(&store, "a/c").await.unwrap(), b"new");
    store.delete("a/c").await.unwrap();
    store.delete("a/c").await.unwrap();
    assert_eq!(whole(&store, "a/c").await, None);
}

#[tokio::test]
async fn a_large_file_is_stored_in_parts_up_to_the_length_that_is_wanted() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(&dir);
    let content: Vec<u8> = (0..2 * PART_BYTES + 12_345).map(|n| (n % 251) as u8).collect();
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&content).unwrap();
    for bytes in [content.len() - 5, PART_BYTES, 10, 0] {
        let part = Content::File { file: file.try_clone().unwrap(), bytes: bytes as u64 };
        store.put("log", part).await.unwrap();
        assert!(whole(&store, "log").await.unwrap() == content[..bytes], "{bytes}");
    }
    for bytes in [content.len() + 1, 3 * PART_BYTES] {
        let part = Content::File { file: file.try_clone().unwrap(), bytes: bytes as u64 };
        store.put("short", part).await.unwrap_err();
        assert_eq!(whole(&store, "short").await, None);
    }
}

#[tokio::test]
async fn a_directory_that_is_missing_is_an_error_until_it_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let later = dir.path().join("later");
    let store = Store::open(format!("file://{}", later.display()).parse().unwrap()).unwrap();
    let error = store.list("a", None, 1).await.unwrap_err().to_string();
    assert!(error.contains("later"), "{error}");
    store.get("a").await.err().unwrap();
    store.put("a", Content::Bytes(Bytes::new())).await.unwrap_err();
    std::fs::create_dir(&later).unwrap();
    put(&store, "a", b"1").await;
    assert_eq!(whole(&store, "a").await.unwrap(), b"1");
}

#[test]
fn a_prefix_is_before_all_names_and_in_none() {
    let store = Store { address: "s3://bucket/a/b".parse().unwrap(), cloud: None };
    let path = store.path("x/index/0.y");
    assert_eq!((path.as_ref(), store.name(&path).as_str()), ("a/b/x/index/0.y", "x/index/0.y"));
}

#[test]
fn signatures_in_messages_are_left_out() {
    let text = "could not GET https://x.example/a?sv=1&sig=secret (https://y?sig=secret): why? unknown";
    assert_eq!(without_queries(text), "could not GET https://x.example/a?… (https://y?…): why? unknown");
}
