//! Documents that kill their readers. The guest must survive, and stay small.

use serde_json::json;

use crate::markdown::convert;
use crate::samples::{package, row, workbook};
use crate::standalone::{Guest, eventually};

/// A spreadsheet that claims `count` texts, so that its reader allocates room for all of them at once.
fn liar(count: u64) -> Vec<u8> {
    let plain = workbook(&[("S", &row(1, &["x"]))]);
    let mut archive = zip::ZipArchive::new(std::io::Cursor::new(plain)).unwrap();
    let names: Vec<String> = archive.file_names().map(|n| n.unwrap().into_owned()).collect();
    let mut parts: Vec<(String, String)> = Vec::new();
    for name in names {
        let text = std::io::read_to_string(archive.by_name(&name).unwrap()).unwrap();
        parts.push((name, text));
    }
    parts.push(("xl/sharedStrings.xml".to_owned(), format!(r#"<sst uniqueCount="{count}"><si><t>x</t></si></sst>"#)));
    package(&parts.iter().map(|(n, c)| (n.as_str(), c.as_str())).collect::<Vec<_>>())
}

#[tokio::test]
async fn readers_that_panic_or_run_out_of_memory_are_one_failed_call() {
    let guest = Guest::start().await;
    for (name, count) in [("panics.xlsx", u64::MAX / 2), ("eats.xlsx", 200_000_000)] {
        std::fs::write(guest.dir.join(name), liar(count)).unwrap();
        let path = guest.dir.join(name).display().to_string();
        let answer = convert(&guest, &path).await;
        assert_eq!(answer["success"], false, "{name} {answer}");
        assert!(answer["message"].as_str().unwrap().contains("reader"), "{answer}");
        let view =
            guest.call("POST", "/v1/file/str_replace_editor", json!({"command": "view", "path": path}).to_string()).await.1;
        assert_eq!(view["data"]["error_type"], "decode_error", "{view}");
    }
    assert_eq!(convert(&guest, "data:,alive").await["data"], "alive\n");
    assert!(guest.peak_memory() < 64 << 20, "{}", guest.peak_memory());
}

#[tokio::test]
async fn readers_that_do_not_end_are_ended() {
    let guest = Guest::start().await;
    std::fs::write(guest.dir.join("deep.html"), "<div>".repeat(2_000_000)).unwrap();
    let answer = convert(&guest, &guest.dir.join("deep.html").display().to_string()).await;
    assert!(answer["message"].as_str().unwrap().contains("longer than 30 s"), "{answer}");
    eventually("the reader is gone", || guest.confined() == 0).await;
    assert_eq!(convert(&guest, "data:,alive").await["data"], "alive\n");
}

#[tokio::test]
async fn files_of_any_size_cost_the_guest_nothing() {
    let guest = Guest::start().await;
    let file = std::fs::File::create(guest.dir.join("huge.pdf")).unwrap();
    file.set_len(8 << 30).unwrap();
    let answer = convert(&guest, &guest.dir.join("huge.pdf").display().to_string()).await;
    assert!(answer["message"].as_str().unwrap().contains("more than 64 MiB"), "{answer}");
    assert!(guest.peak_memory() < 64 << 20, "{}", guest.peak_memory());
}
