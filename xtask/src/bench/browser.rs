//! The browser: its first screenshot and its first page, later screenshots and clicks, and its use of host memory.

use std::io;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::json;

use super::floor::Floor;
use super::http::Connection;
use super::report::{Report, Row};
use super::{BenchArgs, memory, quietly};
use crate::command::{find, repository};
use crate::failure::{Failure, Outcome};
use crate::web;

/// Cold starts take a second each, and there are three in a round.
const MOST_ROUNDS: usize = 15;
const WARM_UP: usize = 2;
/// Screenshots of the bare floor per screenshot of ours: each starts a program, so it gets its best of several.
const PICTURES: usize = 3;
/// Time until all work of a create or a delete has ended.
const SETTLE: Duration = Duration::from_millis(700);
/// Time until a browser has finished its start.
const QUIET: Duration = Duration::from_secs(12);

const PAGE: &str =
    "<title>page</title><button id=button onclick='this.dataset.clicks = 1 + +(this.dataset.clicks || 0)'>Click</button>";
/// The page's address, from inside.
const SITE: &str = "http://127.0.0.1:8765/page.html";

const BY_HAND: &str = include_str!("../../../bench/floors/browser.py");

pub(super) fn measure(args: &BenchArgs, api: &mut Connection, work: &Path, report: &mut Report) -> Outcome {
    let rounds = args.rounds.min(MOST_ROUNDS);
    cold(rounds, api, report)?;
    pictures(2 * rounds, api, work, report)?;
    clicks(args.port, args.rounds, report)?;
    occupied(args.port, report)
}

/// Time until the browser answers, and until its window is painted, if it is started by hand in this sandbox.
fn by_hand(api: &mut Connection, name: &str, stays: bool) -> Result<[Duration; 2], Failure> {
    let stays = if stays { "stay" } else { "" };
    let said = api.bash(name, &format!("cat >by-hand.py <<'END'\n{BY_HAND}\nEND\npython3 by-hand.py {stays}"))?;
    let numbers: Vec<f64> = said.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [ready, painted] = numbers[..] else { return Err(Failure::new(format!("the floor answered {said:?}"))) };
    Ok([ready, painted].map(|microseconds| Duration::from_secs_f64(microseconds / 1e6)))
}

fn picture(api: &mut Connection, name: &str) -> Result<Duration, Failure> {
    let begun = Instant::now();
    api.download(&format!("/sandbox/{name}/v1/browser/screenshot"), &mut io::sink())?;
    Ok(begun.elapsed())
}

/// Serves the page to the sandbox's browser.
fn serve(api: &mut Connection, name: &str) -> Outcome {
    let command = format!(
        "mkdir site; cat >site/page.html <<'END'\n{PAGE}\nEND\n(cd site; python3 -m http.server -b 127.0.0.1 8765 >/dev/null 2>&1 &)\n\
         until curl -fsS -o /dev/null {SITE} 2>/dev/null; do sleep 0.05; done"
    );
    api.bash(name, &command).map(drop)
}

fn navigate(api: &mut Connection, name: &str) -> Result<Duration, Failure> {
    let begun = Instant::now();
    let answer = api.post(&format!("/sandbox/{name}/v1/browser/page/navigate"), &json!({ "url": SITE }))?;
    let took = begun.elapsed();
    if answer["data"]["title"] != "page" {
        return Err(Failure::new(format!("the page was answered with {answer}")));
    }
    Ok(took)
}

/// Measures in a new sandbox that is used for nothing else.
fn fresh<T>(
    api: &mut Connection,
    name: &str,
    measure: impl FnOnce(&mut Connection, &str) -> Result<T, Failure>,
) -> Result<T, Failure> {
    api.create_of(name, "browser")?;
    sleep(SETTLE);
    let measured = measure(api, name)?;
    api.delete(name)?;
    sleep(SETTLE);
    Ok(measured)
}

/// Each round of three sandboxes.
fn cold(rounds: usize, api: &mut Connection, report: &mut Report) -> Outcome {
    let (mut pictures, mut pages, mut ready, mut painted) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for round in 0..WARM_UP + rounds {
        let first = fresh(api, &format!("bench-picture-{round}"), picture)?;
        let hand = fresh(api, &format!("bench-hand-{round}"), |api, name| by_hand(api, name, false))?;
        let page = fresh(api, &format!("bench-page-{round}"), |api, name| {
            serve(api, name)?;
            navigate(api, name)
        })?;
        if round >= WARM_UP {
            pictures.push(first);
            pages.push(page);
            ready.push(hand[0]);
            painted.push(hand[1]);
        }
    }
    report.push(
        Row::ratio("first browser/screenshot of a new sandbox, p50", &pictures, 0.50, &painted, 0.50, 1.3)
            .against("Xvnc and Chromium by hand, to the painted window"),
    );
    report.push(
        Row::ratio("first browser/page/navigate of a new sandbox, p50", &pages, 0.50, &ready, 0.50, 1.3)
            .against("Xvnc and Chromium by hand, to CDP's answer"),
    );
    Ok(())
}

fn pictures(rounds: usize, api: &mut Connection, work: &Path, report: &mut Report) -> Outcome {
    const NAME: &str = "bench-pictures";
    let program = work.join("screen");
    let source = repository().join("bench/floors/screen.c").display().to_string();
    let output = program.display().to_string();
    // Statically linked: the sandbox has other libraries.
    let libraries = ["-lX11", "-lxcb", "-lXau", "-lXdmcp", "-lpng", "-lz", "-lm"];
    quietly("cc", &[&["-O2", "-Wall", "-static", "-o", &output, &source][..], &libraries].concat(), work)?;
    api.create_of(NAME, "browser")?;
    serve(api, NAME)?;
    navigate(api, NAME)?;
    api.upload(NAME, "/home/gem/screen", &program)?;
    api.bash(NAME, "chmod +x ~/screen")?;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 0..WARM_UP + rounds {
        let took = picture(api, NAME)?;
        let said = api.bash(NAME, &format!("DISPLAY=:99 ~/screen {PICTURES}"))?;
        let best = said.split_whitespace().filter_map(|word| word.parse::<f64>().ok()).reduce(f64::min);
        let best = best.ok_or_else(|| Failure::new(format!("the floor answered {said:?}")))?;
        if round >= WARM_UP {
            ours.push(took);
            theirs.push(Duration::from_secs_f64(best / 1e6));
        }
    }
    api.delete(NAME)?;
    report.push(
        Row::ratio("browser/screenshot over HTTP, p50", &ours, 0.50, &theirs, 0.50, 3.0)
            .against("XGetImage and libpng at level 1"),
    );
    Ok(())
}

/// Clicks by REST and by Playwright, each in a separate browser.
fn clicks(port: u16, rounds: usize, report: &mut Report) -> Outcome {
    const OURS: &str = "bench-click";
    const THEIRS: &str = "bench-playwright";
    let node = find("node").ok_or_else(|| Failure::new("node is not there"))?;
    web::install(&repository().join("tests/clients"))?;
    // The server may have closed the other connection meanwhile.
    let api = &mut Connection::open(port)?;
    for name in [OURS, THEIRS] {
        api.create_of(name, "browser")?;
        serve(api, name)?;
        navigate(api, name)?;
    }
    let script = repository().join("tests/clients/click.mjs").display().to_string();
    let mut playwright =
        Floor::start(&node, &[script, format!("http://127.0.0.1:{port}/sandbox/{THEIRS}/cdp"), SITE.to_owned()])?;
    let click = json!({ "selector": "#button" });
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 0..WARM_UP + rounds {
        let begun = Instant::now();
        api.post(&format!("/sandbox/{OURS}/v1/browser/page/click"), &click)?;
        let took = begun.elapsed();
        let other = playwright.once()?;
        if round >= WARM_UP {
            ours.push(took);
            theirs.push(other);
        }
    }
    let evaluate = json!({ "expression": "document.querySelector('#button').dataset.clicks" });
    let counted = api.post(&format!("/sandbox/{OURS}/v1/browser/page/evaluate"), &evaluate)?;
    if counted["data"].as_str() != Some(&(WARM_UP + rounds).to_string()) {
        return Err(Failure::new(format!("not every click arrived: {counted}")));
    }
    drop(playwright);
    [OURS, THEIRS].into_iter().try_for_each(|name| api.delete(name))?;
    report.push(
        Row::ratio("browser/page/click over HTTP, p50", &ours, 0.50, &theirs, 0.50, 1.3).against("Playwright's click over CDP"),
    );
    Ok(())
}

/// The memory of a sandbox with a browser, next to that of its X server and browser alone, started by hand.
fn occupied(port: u16, report: &mut Report) -> Outcome {
    const OURS: &str = "bench-occupied";
    const THEIRS: &str = "bench-by-hand";
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let mut measured = [0.0; 2];
    // One after another: concurrent browsers share pages.
    for (i, name) in [OURS, THEIRS].into_iter().enumerate() {
        let api = &mut Connection::open(port)?;
        api.create_of(name, "browser")?;
        let first = memory::first_id(api, name)?;
        if name == OURS {
            picture(api, name)?;
        } else {
            by_hand(api, name, true)?;
        }
        sleep(QUIET);
        let is_bare = |program: &str| name == OURS || ["Xvnc", "chrom"].iter().any(|begin| program.starts_with(begin));
        measured[i] = mib(memory::of_programs(first, is_bare)?);
        // The server may have closed the other, idle connection.
        Connection::open(port)?.delete(name)?;
        sleep(SETTLE);
    }
    let [ours, theirs] = measured;
    let row = Row::plain("sandbox with a browser, PSS of all its processes", ours, "MiB");
    report.push(row.beside(theirs).against("Xvnc and Chromium by hand"));
    Ok(())
}
