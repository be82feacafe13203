//! Forms: writing, selecting, checking, and uploading.

use std::path::PathBuf;

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::element::Element;
use super::types::{PageButton, SelectRequest};
use super::{PageError, PageLocation, Target, Work};
use arenite_guest_files::files::Failure;
use arenite_guest_runtime::Runtime;
use arenite_guest_runtime::workers::Kind;

/// Maximum files of one upload, and items of one form.
const MAX_ITEMS: usize = 200;

/// One field of a form.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Item {
    selector: Option<String>,
    index: Option<i64>,
    #[serde(alias = "text")]
    value: Option<Value>,
}

impl Work {
    pub(super) async fn fill(&self, target: &Target, text: &str) -> Result<PageLocation, PageError> {
        self.fill_in(target, text, false).await?;
        self.settled().await
    }

    /// Replaces a field's text, or appends to it. Returns the field's content afterwards, unless the field is gone or secret.
    pub async fn write(&self, target: &Target, text: &str, adds: bool) -> Result<(PageLocation, Option<String>), PageError> {
        self.fill_in(target, text, adds).await?;
        let location = self.settled().await?;
        let written = match self.tab.look(target).await {
            Ok(Some(element)) => self.tab.on(&element, "written", json!([false])).await.unwrap_or_default(),
            // The page may have changed it.
            _ => None,
        };
        Ok((location, written))
    }

    async fn fill_in(&self, target: &Target, text: &str, adds: bool) -> Result<(), PageError> {
        let act = |element: Element| async move {
            self.show(&element).await?;
            if let Err(why) = self.tab.usable(target, &element).await? {
                return Ok(Err(why));
            }
            let kind: String = self.tab.on(&element, "inputKind", json!([])).await?;
            match kind.as_str() {
                "select" => {
                    return self
                        .choose(target, &element, json!([{"value": text, "label": text}]))
                        .await
                        .map(|done| done.map(drop));
                }
                "text" | "value" => {}
                _ => return Err(PageError::Bad(format!("{target} takes no text"))),
            }
            let _hands = self.tab.hands.lock().await;
            let before: Option<String> = match adds && kind == "text" {
                true => self.tab.on(&element, "written", json!([true])).await?,
                false => None,
            };
            let text = &format!("{}{text}", before.unwrap_or_default());
            let state: String = self.tab.on(&element, "fill", json!([text, adds])).await?;
            match state.as_str() {
                "insert" => self.insert(text).await?,
                "readonly" => return Ok(Err(PageError::Failed(format!("{target} can only be read")))),
                "refused" => return Err(PageError::Bad(format!("{target} does not take {text:?}"))),
                _ => {}
            }
            Ok(Ok(()))
        };
        self.tab.with(target, act).await
    }

    pub(super) async fn select_option(&self, request: SelectRequest) -> Result<(PageLocation, Vec<String>), PageError> {
        let SelectRequest { selector, value, label, index } = request;
        let wanted = match (value, label, index) {
            (Some(value), None, None) => json!([{"value": value}]),
            (None, Some(label), None) => json!([{"label": label}]),
            (None, None, Some(index)) => json!([{"index": index}]),
            (None, None, None) => return Err(PageError::Bad("give a value, a label or an index".to_owned())),
            _ => return Err(PageError::Bad("give one of value, label and index".to_owned())),
        };
        let chosen = self.select(&Target::selector(selector)?, wanted).await?;
        Ok((self.settled().await?, chosen))
    }

    /// Selects the option with this value or label. Returns the values that are selected afterwards.
    pub async fn choose_one(&self, target: &Target, option: &str) -> Result<(PageLocation, Vec<String>), PageError> {
        let chosen = self.select(target, json!([{"value": option, "label": option}])).await?;
        Ok((self.settled().await?, chosen))
    }

    async fn select(&self, target: &Target, wanted: Value) -> Result<Vec<String>, PageError> {
        let wanted = &wanted;
        let act = |element: Element| async move {
            let kind: String = self.tab.on(&element, "inputKind", json!([])).await?;
            if kind != "select" {
                return Err(PageError::Bad(format!("{target} is no select element")));
            }
            if let Err(why) = self.tab.usable(target, &element).await? {
                return Ok(Err(why));
            }
            self.choose(target, &element, wanted.clone()).await
        };
        self.tab.with(target, act).await
    }

    async fn choose(
        &self,
        target: &Target,
        element: &Element,
        wanted: Value,
    ) -> Result<Result<Vec<String>, PageError>, PageError> {
        let chosen: Value = self.tab.on(element, "select", json!([wanted])).await?;
        Ok(match serde_json::from_value(chosen.clone()) {
            Ok(chosen) => Ok(chosen),
            // Options may still be loading.
            Err(_) if chosen.is_null() => Err(PageError::Missing(format!("{target} has no such option"))),
            Err(_) => Err(PageError::Failed(format!("that option of {target} is disabled"))),
        })
    }

    pub(super) async fn check(&self, selector: String, wanted: bool) -> Result<(PageLocation, bool), PageError> {
        self.set_checked(&Target::selector(selector)?, wanted).await?;
        Ok((self.settled().await?, wanted))
    }

    /// Clicks the control unless its state is already `wanted`.
    async fn set_checked(&self, target: &Target, wanted: bool) -> Result<(), PageError> {
        let is_checked = |element: Element| async move {
            let checked: Option<bool> = self.tab.on(&element, "setChecked", json!([])).await?;
            checked.ok_or_else(|| PageError::Bad(format!("{target} can't be checked"))).map(Ok)
        };
        if self.tab.with(target, is_checked).await? == wanted {
            return Ok(());
        }
        let documents = self.tab.state().documents;
        self.click_element(target, PageButton::Left, 1).await?;
        // A page that navigates after the click has handled it.
        let left = self.tab.until(Instant::now() + super::AUTO_WAIT, |state| (state.documents != documents).then_some(()));
        tokio::select! {
            left = left => return left.map(drop),
            checked = self.tab.with(target, is_checked) => if checked? == wanted || self.tab.is_replaced(documents) {
                return Ok(());
            },
        }
        let word = if wanted { "checked" } else { "unchecked" };
        Err(PageError::Failed(format!("{target} did not get {word} by a click")))
    }

    pub(super) async fn upload(
        &self,
        runtime: &Runtime,
        selector: String,
        files: &[String],
    ) -> Result<(PageLocation, Vec<String>), PageError> {
        let target = &Target::selector(selector)?;
        if let Some(relative) = files.iter().find(|file| !file.starts_with('/') && !file.starts_with("~/")) {
            return Err(PageError::Bad(format!("{relative:?} is no absolute path")));
        }
        if files.len() > MAX_ITEMS {
            return Err(PageError::Bad(format!("one call uploads up to {MAX_ITEMS} files")));
        }
        let paths: Vec<PathBuf> = files.iter().map(|file| runtime.absolute(file)).collect();
        let looked = paths.clone();
        let look = move |_: &_| {
            for path in &looked {
                // Checked with the rights of the browser's user.
                let found = std::fs::File::open(path).and_then(|file| file.metadata());
                let meta = found.map_err(|error| Failure::io(error, &path.display().to_string()))?;
                if meta.is_dir() {
                    return Err(Failure::invalid(format!("{} is a directory", path.display())));
                }
            }
            Ok(())
        };
        runtime.workers.run(Kind::Brief, &runtime.user, look).await?;
        let paths = &paths;
        let act = |element: Element| async move {
            let takes: String = self.tab.on(&element, "files", json!([])).await?;
            match takes.as_str() {
                "no" => return Err(PageError::Bad(format!("{target} takes no files"))),
                "one" if paths.len() > 1 => return Err(PageError::Bad(format!("{target} takes one file"))),
                _ => {}
            }
            let params = json!({"files": paths, "objectId": element.object});
            self.tab.effect("DOM.setFileInputFiles", params).await?;
            Ok(Ok(()))
        };
        self.tab.with(target, act).await?;
        let names = paths.iter().map(|path| path.file_name().unwrap_or_default().to_string_lossy().into_owned()).collect();
        Ok((self.settled().await?, names))
    }

    pub(super) async fn fill_form(&self, items: Vec<Item>) -> Result<(PageLocation, usize), PageError> {
        if items.is_empty() || items.len() > MAX_ITEMS {
            return Err(PageError::Bad(format!("give 1 to {MAX_ITEMS} items")));
        }
        let count = items.len();
        for (number, item) in items.into_iter().enumerate() {
            let of = |error: PageError| {
                let told = format!("items[{number}]: {error}");
                match error {
                    PageError::Bad(_) => PageError::Bad(told),
                    PageError::Missing(_) => PageError::Missing(told),
                    PageError::Failed(_) | PageError::TooSlow { .. } | PageError::Threw(_) => PageError::Failed(told),
                    other => other,
                }
            };
            self.fill_item(item).await.map_err(of)?;
        }
        Ok((self.settled().await?, count))
    }

    async fn fill_item(&self, item: Item) -> Result<(), PageError> {
        let target = &Target::new(item.selector, item.index)?;
        let value = item.value.ok_or_else(|| PageError::Bad("give a value".to_owned()))?;
        let look = |element: Element| async move { self.tab.on::<String>(&element, "inputKind", json!([])).await.map(Ok) };
        let kind = self.tab.with(target, look).await?;
        let text = |value: &Value| match value {
            Value::String(text) => Ok(text.clone()),
            Value::Number(number) => Ok(number.to_string()),
            Value::Null => Ok(String::new()),
            other => Err(PageError::Bad(format!("{target} takes text, not {other}"))),
        };
        match (kind.as_str(), &value) {
            ("check", Value::Bool(wanted)) => self.set_checked(target, *wanted).await,
            ("check", Value::String(word)) if matches!(word.as_str(), "true" | "on" | "false" | "off") => {
                self.set_checked(target, matches!(word.as_str(), "true" | "on")).await
            }
            ("check", _) => Err(PageError::Bad(format!("{target} takes true or false"))),
            ("select", Value::Array(list)) => {
                let wanted = list.iter().map(|one| text(one).map(|text| json!({"value": text, "label": text})));
                self.select(target, Value::Array(wanted.collect::<Result<_, _>>()?)).await.map(drop)
            }
            ("select", one) => {
                let text = text(one)?;
                self.select(target, json!([{"value": text, "label": text}])).await.map(drop)
            }
            // A switch that is not an HTML checkbox.
            ("none", Value::Bool(wanted)) => self.set_checked(target, *wanted).await,
            _ => self.fill_in(target, &text(&value)?, false).await,
        }
    }
}
