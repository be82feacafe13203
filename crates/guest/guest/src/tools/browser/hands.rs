//! Mouse and keyboard in the page, and forms.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::keys::KeyName;
use super::{LIST_ELEMENTS, act, target};
use crate::tools::tool::{Caller, ToolResult};
use arenite_guest_browser::{ClickRequest, PageButton, PageError, ScrollDirection, Target, Work};
use arenite_guest_runtime::http::whole;

/// Clicks an element, once it can be clicked: by its index of browser_get_clickable_elements, or by a selector.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct Click {
    /// The element's index.
    #[schemars(example = 0)]
    index: Option<i64>,
    /// Or: CSS, `text=…`, `role=button[name="…"]` or an XPath.
    #[schemars(example = "#submit")]
    selector: Option<String>,
}

pub(super) async fn click(caller: Caller, Click { index, selector }: Click) -> ToolResult {
    let target = target(selector, index)?;
    let (selector, index) = match target.clone() {
        Target::Selector(selector) => (Some(selector), None),
        Target::Index(index) => (None, i64::try_from(index).ok()),
    };
    let request = ClickRequest { selector, index, x: None, y: None, button: PageButton::Left, click_count: 1 };
    act(&caller, format!("Clicked {target}"), LIST_ELEMENTS, |work| async move {
        let (place, (x, y)) = work.click(request).await?;
        Ok(json!({"url": place.url, "title": place.title, "x": x, "y": y}))
    })
    .await
}

/// Writes into a field: a text field, or what is edited in the page itself. A select element takes an option's value or
/// label. Give an index of browser_get_clickable_elements or a selector.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct FormInputFill {
    /// CSS, `text=…`, `role=textbox[name="…"]` or an XPath.
    #[schemars(example = "input[name=email]")]
    pub(super) selector: Option<String>,
    /// Or: the element's index.
    pub(super) index: Option<i64>,
    /// What to write. Dates as 2025-12-31, times as 23:59.
    #[serde(alias = "text")]
    pub(super) value: String,
    /// Replace the existing text instead of appending to it.
    #[serde(default)]
    pub(super) clear: bool,
}

pub(super) async fn fill(caller: Caller, FormInputFill { selector, index, value, clear }: FormInputFill) -> ToolResult {
    let target = target(selector, index)?;
    let hint = "checkboxes and buttons are used by browser_click; browser_get_clickable_elements lists the page's elements \
                and their indexes as they are now";
    act(&caller, format!("Filled in {target}"), hint, |work| async move {
        let (place, has) = work.write(&target, &value, !clear).await?;
        let said = has.as_ref().map(|has| format!("It has now: {has}"));
        Ok(json!({"url": place.url, "title": place.title, "value": has, "said": said}))
    })
    .await
}

/// Chooses an option of a select element, by an index of browser_get_clickable_elements or a selector.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct Select {
    /// The element's index.
    index: Option<i64>,
    /// Or: CSS, `role=combobox[name="…"]` or an XPath.
    #[schemars(example = "select[name=country]")]
    selector: Option<String>,
    /// The option's value or label.
    value: String,
}

pub(super) async fn select(caller: Caller, Select { index, selector, value }: Select) -> ToolResult {
    let target = target(selector, index)?;
    let hint = "browser_evaluate can list the options: \
                () => [...document.querySelector('select').options].map(o => [o.value, o.label])";
    act(&caller, format!("Chose {value:?} of {target}"), hint, |work| async move {
        let (place, selected) = work.choose_one(&target, &value).await?;
        Ok(json!({"url": place.url, "title": place.title, "selected": selected}))
    })
    .await
}

/// Moves the mouse over an element, so that what the page shows then can be seen: by an index of
/// browser_get_clickable_elements or a selector.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct Hover {
    /// The element's index.
    index: Option<i64>,
    /// Or: CSS, `text=…`, `role=menuitem[name="…"]` or an XPath.
    #[schemars(example = "nav .menu")]
    selector: Option<String>,
}

pub(super) async fn hover(caller: Caller, Hover { index, selector }: Hover) -> ToolResult {
    let target = target(selector, index)?;
    act(&caller, format!("Moved the mouse over {target}"), LIST_ELEMENTS, |work| async move {
        let (place, (x, y)) = work.hover_over(&target).await?;
        Ok(json!({"url": place.url, "title": place.title, "x": x, "y": y}))
    })
    .await
}

/// Scrolls the current tab's page, and returns how many pixels of it are above and below afterwards.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct Scroll {
    /// Pixels down; below 0: up. Absent: to the bottom.
    #[schemars(example = 600, range(min = -1_000_000, max = 1_000_000))]
    amount: Option<f64>,
}

pub(super) async fn scroll(caller: Caller, Scroll { amount }: Scroll) -> ToolResult {
    let amount = amount.map(|amount| amount.round() as i64);
    act(&caller, "Scrolled".to_owned(), "", |work| async move {
        match amount {
            Some(amount) if amount < 0 => drop(work.scroll(ScrollDirection::Up, amount.saturating_neg()).await?),
            Some(amount) => drop(work.scroll(ScrollDirection::Down, amount).await?),
            None => to_the_bottom(&work).await?,
        }
        let ((above, below), place) = (work.beyond().await?, work.location());
        let said = match below < 1.0 {
            true => format!("{above:.0} pixels of the page are above; its end is reached"),
            false => format!("{above:.0} pixels of the page are above, {below:.0} below"),
        };
        Ok(json!({"url": place.url, "title": place.title, "pixels_above": above, "pixels_below": below, "said": said}))
    })
    .await
}

async fn to_the_bottom(work: &Work) -> Result<(), PageError> {
    match work.beyond().await? {
        // The scrolling element may be a part of the page.
        (_, below) if below < 1.0 => work.scroll(ScrollDirection::Down, 1_000_000).await.map(drop),
        (above, below) => work.scroll_to(0, (above + below).ceil() as i64).await.map(drop),
    }
}

/// Presses a key in the current tab's page: the focused element gets it. Use browser_form_input_fill to write text.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct PressKey {
    /// The key.
    #[schemars(example = KeyName::Enter)]
    key: KeyName,
}

pub(super) async fn press_key(caller: Caller, PressKey { key }: PressKey) -> ToolResult {
    // If the caller leaves, no key stays pressed.
    whole(async move {
        let press =
            |work: std::sync::Arc<Work>| async move { Ok::<Value, PageError>(json!(work.press_key(&key.to_string()).await?)) };
        act(&caller, format!("Pressed {key}"), "", press).await
    })
    .await
}
