//! Pages of sandboxes.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails its test")]

mod support;

use arenite_control::fake_engine::FakeEngine;
use arenite_control::{Control, CreateRequest, ListOrder, Sandbox, SpecOverlay};
use support::{config, name, named, start, tenant};

/// The names of all pages. `between` runs after each page.
async fn read(control: &Control, order: ListOrder, limit: usize, mut between: impl AsyncFnMut(usize)) -> Vec<String> {
    let (mut names, mut after) = (Vec::new(), None);
    for number in 0.. {
        let (page, has_more) = control.select(&tenant(), Vec::new(), order, after.as_ref(), limit, |_| true);
        assert!(page.len() == limit || !has_more && page.len() < limit);
        names.extend(page.iter().map(|sandbox| sandbox.name.to_string()));
        after = page.last().map(Sandbox::position);
        if !has_more {
            break;
        }
        between(number).await;
    }
    names
}

#[tokio::test]
async fn each_sandbox_is_in_one_page_in_either_order() {
    let control = start(config(), &FakeEngine::new()).await;
    let other = "other".parse().unwrap();
    for number in 0..50 {
        control.create(&tenant(), named(&format!("x{number}"))).await.unwrap();
        control.create(&other, named(&format!("y{number}"))).await.unwrap();
    }
    let listed = control.list(&tenant()).await.unwrap();
    let oldest: Vec<String> = listed.iter().map(|sandbox| sandbox.name.to_string()).collect();
    let newest: Vec<String> = oldest.iter().rev().cloned().collect();
    for limit in [1, 7, 25, 50, 51] {
        assert_eq!(read(&control, ListOrder::OldestFirst, limit, async |_| {}).await, oldest);
        assert_eq!(read(&control, ListOrder::NewestFirst, limit, async |_| {}).await, newest);
    }
    assert_eq!(control.select(&tenant(), Vec::new(), ListOrder::OldestFirst, None, 0, |_| true).0.len(), 0);
}

#[tokio::test]
async fn pages_stay_complete_while_sandboxes_come_and_go() {
    let control = start(config(), &FakeEngine::new()).await;
    for number in 0..30 {
        control.create(&tenant(), named(&format!("kept-{number:02}"))).await.unwrap();
        control.create(&tenant(), named(&format!("gone-{number:02}"))).await.unwrap();
    }
    for order in [ListOrder::OldestFirst, ListOrder::NewestFirst] {
        let is_oldest = order == ListOrder::OldestFirst;
        let names = read(&control, order, 5, async |number| {
            // Before the place of the reader, and after it.
            for gone in if is_oldest { vec![number, 29 - number] } else { vec![] } {
                let _ = control.delete(&tenant(), &name(&format!("gone-{gone:02}"))).await;
            }
            if number < 5 {
                control.create(&tenant(), named(&format!("new-{is_oldest}-{number}"))).await.unwrap();
            }
        });
        let names = names.await;
        let kept: Vec<&String> = names.iter().filter(|name| name.starts_with("kept-")).collect();
        assert!(kept.len() == 30 && (is_oldest == kept.is_sorted()), "{names:?}");
        let mut once = names.clone();
        once.sort();
        once.dedup();
        assert_eq!(once.len(), names.len());
    }
}

#[tokio::test]
async fn only_the_selected_ones_are_in_a_page() {
    let control = start(config(), &FakeEngine::new()).await;
    for number in 0..20 {
        let labels = Some([("n".to_owned(), (number % 3).to_string())].into());
        let spec = SpecOverlay { labels, ..SpecOverlay::default() };
        control.create(&tenant(), CreateRequest { spec, ..named(&format!("x{number:02}")) }).await.unwrap();
    }
    let zero = |sandbox: &Sandbox| sandbox.spec.labels["n"] == "0";
    let (page, has_more) = control.select(&tenant(), Vec::new(), ListOrder::OldestFirst, None, 7, zero);
    assert_eq!((page.len(), has_more), (7, false));
    let (page, has_more) = control.select(&tenant(), Vec::new(), ListOrder::OldestFirst, None, 6, zero);
    assert_eq!((page.last().unwrap().name.as_str(), has_more), ("x15", true));
    // Its last use is the current one.
    let before = page[0].last_used_at;
    drop(control.lease(&tenant(), &page[0].name).await.unwrap());
    let (page, _) = control.select(&tenant(), Vec::new(), ListOrder::OldestFirst, None, 1, |_| true);
    assert!(page[0].last_used_at > before);
}
