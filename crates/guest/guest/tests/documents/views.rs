use serde_json::{Value, json};

use crate::samples::{pdf, row, slides, word, workbook};
use crate::standalone::Guest;

async fn editor(guest: &Guest, arguments: Value) -> Value {
    let (status, answer) = guest.call("POST", "/v1/file/str_replace_editor", arguments.to_string()).await;
    assert_eq!(status, 200, "{answer}");
    answer
}

async fn view(guest: &Guest, name: &str, mut arguments: Value) -> Value {
    arguments["command"] = "view".into();
    arguments["path"] = guest.dir.join(name).display().to_string().into();
    let answer = editor(guest, arguments).await;
    assert_eq!(answer["success"], true, "{answer}");
    answer["data"].clone()
}

fn output(data: &Value) -> &str {
    data["output"].as_str().unwrap()
}

#[tokio::test]
async fn ranges_show_a_part_and_metadata_the_whole() {
    let guest = Guest::start().await;
    let put = |name: &str, bytes: Vec<u8>| std::fs::write(guest.dir.join(name), bytes).unwrap();
    put("a.pdf", pdf(&["page one", "page two", "page three"]));
    let rows: String = (1..=9).map(|n| row(n, &[&format!("cell {n}")])).collect();
    put("a.XLSX", workbook(&[("One", &rows), ("Two", &row(1, &["other"]))]));
    let shape = r#"<p:sp><p:nvSpPr><p:nvPr/></p:nvSpPr><p:txBody><a:p><a:r><a:t>words</a:t></a:r></a:p></p:txBody></p:sp>"#;
    put("a.pptx", slides(&[shape, shape]));
    put("a.docx", word("<w:p><w:r><w:t>a paragraph</w:t></w:r></w:p>"));
    let data = view(&guest, "a.pdf", json!({"page_range": [2, 2], "enable_metadata": true})).await;
    assert!(output(&data).contains("## Page 2\n\npage two") && !output(&data).contains("page one"), "{data}");
    assert_eq!((&data["metadata"]["total_pages"], &data["prev_exist"]), (&json!(3), &json!(true)));
    let data = view(&guest, "a.XLSX", json!({"sheet_name": "One", "row_range": [8, -1]})).await;
    assert!(output(&data).contains("| 9 | cell 9 |") && !output(&data).contains("cell 7"), "{data}");
    assert_eq!(data["metadata"], Value::Null);
    let data = view(&guest, "a.XLSX", json!({"enable_metadata": true})).await;
    assert!(output(&data).contains("cell 1") && output(&data).contains("other"), "{data}");
    assert_eq!(data["metadata"]["sheet_names"], json!(["One", "Two"]));
    let data = view(&guest, "a.pptx", json!({"slide_range": [2, 2], "enable_metadata": true})).await;
    assert!(output(&data).contains("## Slide 2") && !output(&data).contains("## Slide 1"), "{data}");
    assert_eq!(data["metadata"]["total_slides"], 2);
    assert!(output(&view(&guest, "a.docx", json!({})).await).contains("a paragraph"));
}

#[tokio::test]
async fn text_stays_text_until_its_rows_or_cells_are_asked_for() {
    let guest = Guest::start().await;
    let notebook = json!({"nbformat": 4, "metadata": {}, "cells": [
        {"cell_type": "code", "source": "x = 1", "outputs": []}, {"cell_type": "markdown", "source": "second"}]});
    std::fs::write(guest.dir.join("n.ipynb"), notebook.to_string()).unwrap();
    std::fs::write(guest.dir.join("t.csv"), "a,b\n1,2\n3,4\n").unwrap();
    std::fs::create_dir(guest.dir.join("d.pdf")).unwrap();
    assert!(output(&view(&guest, "n.ipynb", json!({})).await).contains("     1\t{"));
    let data = view(&guest, "n.ipynb", json!({"page_range": [2, 2]})).await;
    assert!(output(&data).contains("## Cell 2 (markdown)\n\nsecond") && !output(&data).contains("x = 1"), "{data}");
    assert!(output(&view(&guest, "t.csv", json!({})).await).contains("     2\t1,2\n"));
    assert!(output(&view(&guest, "t.csv", json!({"row_range": [3, 3]})).await).contains("| 3 | 3 | 4 |"));
    assert!(output(&view(&guest, "d.pdf", json!({})).await).contains("Files and directories"));
}

#[tokio::test]
async fn what_can_not_be_shown_or_changed_says_why() {
    let guest = Guest::start().await;
    let path = |name: &str| guest.dir.join(name).display().to_string();
    std::fs::write(path("a.pdf"), pdf(&["x"])).unwrap();
    std::fs::write(path("t.txt"), "text\n").unwrap();
    std::fs::write(path("fake.docx"), "text").unwrap();
    for (arguments, kind, words) in [
        (json!({"command": "view", "path": path("a.pdf"), "page_range": [2, 3]}), "invalid_argument", "there are 1 pages"),
        (json!({"command": "view", "path": path("a.pdf"), "page_range": [1]}), "invalid_argument", "two numbers"),
        (json!({"command": "view", "path": path("a.pdf"), "view_range": [1, 2]}), "invalid_argument", "page_range"),
        (json!({"command": "view", "path": path("a.pdf"), "slide_range": [1, 1]}), "invalid_argument", "presentations"),
        (json!({"command": "view", "path": path("t.txt"), "sheet_name": "S"}), "invalid_argument", "spreadsheets"),
        (json!({"command": "view", "path": path("no.pdf")}), "not_found", "does not exist"),
        (json!({"command": "view", "path": path("fake.docx")}), "decode_error", "not a readable Word document"),
        (
            json!({"command": "str_replace", "path": path("a.pdf"), "old_str": "x", "new_str": "y"}),
            "invalid_argument",
            "binary file",
        ),
        (
            json!({"command": "insert", "path": path("a.pdf"), "insert_line": 1, "new_str": "y"}),
            "invalid_argument",
            "binary file",
        ),
        (json!({"command": "create", "path": path("new.xlsx"), "file_text": "y"}), "invalid_argument", "binary file"),
    ] {
        let answer = editor(&guest, arguments.clone()).await;
        assert_eq!((&answer["success"], &answer["data"]["error_type"]), (&json!(false), &json!(kind)), "{arguments} {answer}");
        let message = answer["data"]["message"].as_str().unwrap();
        assert!(message.contains(words), "{words:?} in {message}");
    }
    assert!(!guest.dir.join("new.xlsx").exists());
}
