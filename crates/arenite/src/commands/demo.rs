//! `demo`: a scripted agent at work, step by step.

use std::cell::RefCell;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::sleep;

use super::exec::Command;
use super::image::interrupted;
use super::trajectory::{TRAJECTORIES, find, steps_view};
use super::{quoted, sandbox::SANDBOXES};
use crate::cli::DemoArgs;
use crate::client::{Client, encoded};
use crate::failure::{Attempt, Failure, INTERRUPTED, Outcome, REFUSED};
use crate::{output, wire};

/// Pause before each step.
const PAUSE: Duration = Duration::from_millis(3500);
/// The sandboxes end after this time, should the demo not be able to delete them.
const LIFE_TIME_SECONDS: u64 = 3600;
/// Tries to delete a sandbox, which may still be changing its state.
const DELETE_TRIES: usize = 20;
const DELETE_INTERVAL: Duration = Duration::from_millis(250);
/// Prints the sum of the prices, with nothing but a shell.
const SUM: &str = "t=0; while IFS=, read -r _ p; do t=$((t + p)); done <prices.csv; echo \"total: $t\"";

pub(crate) async fn demo(args: DemoArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    let name = match &args.name {
        Some(name) => name.to_string(),
        None => {
            let mut random = [0u8; 2];
            getrandom::fill(&mut random).attempt(|| "no random bytes".into())?;
            format!("demo-{:04x}", u16::from_ne_bytes(random))
        }
    };
    let pause = if args.no_wait { Duration::ZERO } else { PAUSE.div_f64(args.speed) };
    let demo = Demo { client, name, pause, args, made: RefCell::default() };
    let done = tokio::select! {
        done = demo.run() => done,
        () = interrupted() => Err(Failure::new("the demo was interrupted").exit_code(INTERRUPTED)),
    };
    demo.clean_up(done.is_ok()).await;
    done.map(|()| ExitCode::SUCCESS)
}

struct Demo {
    client: Client,
    name: String,
    pause: Duration,
    args: DemoArgs,
    /// The sandboxes that exist, or may exist.
    made: RefCell<Vec<String>>,
}

/// What a command printed, and its exit code.
struct Ran {
    output: String,
    exit_code: Option<i64>,
}

impl Demo {
    async fn run(&self) -> Result<(), Failure> {
        self.create().await?;
        let name = &self.name;
        let home = self.exec("cd && pwd").await?.output;
        let dir = format!("{}/shop", home.trim().trim_end_matches('/'));
        self.step("The agent runs a command.", &format!("arenite exec {name} uname -sr")).await;
        show(&self.exec("uname -sr; echo \"$(id -un) on $(uname -n)\"").await?);
        self.step("It writes a file.", &format!("arenite cp prices.csv {name}:{dir}/")).await;
        let file = format!("{dir}/prices.csv");
        self.exec(&format!("mkdir -p {}", quoted(&dir))).await?;
        self.call("file/write", &json!({ "file": file, "content": "apples,30\npears,21\n" })).await?;
        show(&self.exec(&format!("cat {}", quoted(&file))).await?);
        self.step("It corrects a line of it.", &format!("arenite exec {name} sed -i s/21/12/ {file}")).await;
        self.call("file/replace", &json!({ "file": file, "old_str": "pears,21", "new_str": "pears,12" })).await?;
        show(&self.exec(&format!("cat {}", quoted(&file))).await?);
        self.python(&dir).await?;
        let checkpoint = self.checkpoint().await;
        self.mistake(&dir).await?;
        match checkpoint {
            Some(number) => self.roll_back(number, &dir).await?,
            None => self
                .exec(&format!("mkdir -p {0} && printf 'apples,30\\npears,12\\n' >{0}/prices.csv", quoted(&dir)))
                .await
                .map(drop)?,
        }
        self.fork(&dir).await?;
        self.trajectory().await
    }

    /// The names of its sandboxes: the first one, and its two copies.
    fn names(&self) -> [String; 3] {
        [self.name.clone(), format!("{}-try-0", self.name), format!("{}-try-1", self.name)]
    }

    /// Says what comes next, and which command does the same.
    async fn step(&self, what: &str, command: &str) {
        sleep(self.pause).await;
        output::line(format_args!("\n{what}\n  $ {command}"));
    }

    async fn create(&self) -> Result<(), Failure> {
        let name = &self.name;
        output::line("An agent gets its own computer.");
        let image = self.args.image.as_ref().map_or_else(String::new, |image| format!(" --image {image}"));
        output::line(format_args!("  $ arenite create {name}{image}"));
        let life_time = (!self.args.keep).then_some(LIFE_TIME_SECONDS);
        let request =
            json!({ "name": name, "image": self.args.image, "timeout_seconds": life_time, "labels": { "made-by": "demo" } });
        for name in self.names() {
            if self.client.get::<Value>(&format!("{SANDBOXES}/{name}")).await.is_ok() {
                return Err(Failure::new(format!("sandbox {name} exists already"))
                    .hint("name another with --name")
                    .exit_code(REFUSED));
            }
        }
        self.made.borrow_mut().push(name.clone());
        let created = self.client.post_watched(SANDBOXES, &request, &mut |_| {}).await;
        // Another one of this name is not the demo's to delete.
        let sandbox: wire::Sandbox = created.inspect_err(|_| self.made.borrow_mut().clear())?;
        let took: f64 = sandbox.stages.iter().map(|stage| stage.ms).sum();
        output::line(format_args!(
            "  ready in {took:.0} ms, image {}, isolated by {}",
            sandbox.spec.image,
            sandbox.isolation.join(", ")
        ));
        Ok(())
    }

    async fn python(&self, dir: &str) -> Result<(), Failure> {
        let code = "import csv; print('total:', sum(int(price) for _, price in csv.reader(open('prices.csv'))))";
        self.step("It computes with Python.", &format!("arenite exec {} -w {dir} python3 -c '…'", self.name)).await;
        let ran = self.exec(&format!("cd {} && python3 -c {}", quoted(dir), quoted(code))).await?;
        if ran.exit_code == Some(127) {
            skipped("this image has no Python; base and larger ones have it");
            return Ok(());
        }
        show(&ran);
        Ok(())
    }

    /// The number of the checkpoint. None: the engine has none.
    async fn checkpoint(&self) -> Option<u32> {
        let name = &self.name;
        self.step("It keeps the state of the disk.", &format!("arenite checkpoint {name} --note 'it works'")).await;
        let request = json!({ "note": "it works" });
        match self.client.post::<wire::Checkpoint>(&format!("{SANDBOXES}/{name}/checkpoints"), &request).await {
            Ok(checkpoint) => {
                let frozen = checkpoint.frozen_ms.unwrap_or_default();
                output::line(format_args!("  checkpoint {}; the sandbox was frozen for {frozen:.1} ms", checkpoint.number));
                Some(checkpoint.number)
            }
            Err(failure) => {
                skipped(&failure.whole());
                None
            }
        }
    }

    async fn mistake(&self, dir: &str) -> Result<(), Failure> {
        self.step(
            "It makes a mistake: it removes the folder, and then needs it.",
            &format!("arenite exec {} -c 'rm -r {dir}; cat {dir}/prices.csv'", self.name),
        )
        .await;
        let dir = quoted(dir);
        show(&self.exec(&format!("rm -r {dir}; cat {dir}/prices.csv")).await?);
        Ok(())
    }

    async fn roll_back(&self, checkpoint: u32, dir: &str) -> Result<(), Failure> {
        let name = &self.name;
        self.step("What changed since the checkpoint?", &format!("arenite diff {name} {checkpoint}")).await;
        let path = format!("{SANDBOXES}/{name}/diff?before={checkpoint}&after=current&limit=100");
        match self.client.get::<wire::Differences>(&path).await {
            Ok(found) => {
                for path in found.paths.iter().filter(|path| path.path.starts_with(dir)) {
                    output::line(format_args!("  {:<8} {}", path.change, output::harmless(&path.path)));
                }
            }
            Err(failure) => skipped(&failure.whole()),
        }
        self.step("It goes back to the checkpoint.", &format!("arenite rollback {name} {checkpoint}")).await;
        let request = json!({ "to": checkpoint.to_string() });
        self.client.post::<Value>(&format!("{SANDBOXES}/{name}/rollback"), &request).await?;
        show(&self.exec(&format!("cat {}/prices.csv", quoted(dir))).await?);
        Ok(())
    }

    /// Two copies of the sandbox try different ways.
    async fn fork(&self, dir: &str) -> Result<(), Failure> {
        let name = &self.name;
        self.step(
            "Which discount is better? Two copies of the sandbox try one each.",
            &format!("arenite fork {name} --count 2 --name {name}-try"),
        )
        .await;
        let life_time = (!self.args.keep).then_some(LIFE_TIME_SECONDS);
        let [_, copies @ ..] = self.names();
        let request = json!({ "count": 2, "name": format!("{name}-try"), "timeout_seconds": life_time });
        self.made.borrow_mut().extend(copies.clone());
        if let Err(failure) = self.client.post::<Value>(&format!("{SANDBOXES}/{name}/fork"), &request).await {
            self.made.borrow_mut().truncate(1);
            skipped(&failure.whole());
            return Ok(());
        }
        let ways = [("apples at 25", "s/30/25/"), ("pears at 9", "s/12/9/")];
        let dir = quoted(dir);
        let lines = ways.map(|(_, change)| format!("cd {dir} && sed -i {change} prices.csv && {SUM}"));
        let (first, second) = tokio::try_join!(self.exec_in(&copies[0], &lines[0]), self.exec_in(&copies[1], &lines[1]))?;
        for ((copy, (way, _)), ran) in copies.iter().zip(ways).zip([first, second]) {
            output::line(format_args!("  {copy}: {way}: {}", output::harmless(ran.output.trim())));
        }
        let unchanged = self.exec(&format!("cd {dir} && {SUM}")).await?;
        output::line(format_args!("  {name} is unchanged: {}", output::harmless(unchanged.output.trim())));
        Ok(())
    }

    async fn trajectory(&self) -> Result<(), Failure> {
        const SHOWN: u64 = 30;
        self.step("Every call was recorded as a step.", &format!("arenite trajectory show {}", self.name)).await;
        let id = find(&self.client, &self.name).await?;
        let steps = self.client.get(&format!("{TRAJECTORIES}/{}?after=0&limit={SHOWN}", encoded(&id))).await?;
        steps_view(&self.name, steps)?.print();
        let server = self.client.server();
        output::line(format_args!("\nThe same in the console: {server}/trajectory/{id}"));
        output::line("Trajectories stay when their sandboxes are deleted. Export them with: arenite trajectory export");
        Ok(())
    }

    async fn clean_up(&self, is_done: bool) {
        let made = self.made.take();
        if self.args.keep && is_done {
            output::line(format_args!("\nKept: {}. A shell: arenite exec {}", made.join(", "), self.name));
            return output::line(format_args!(
                "The dashboard: arenite open {}. Delete them with: arenite rm {}",
                self.name,
                made.join(" ")
            ));
        }
        if made.is_empty() {
            return;
        }
        output::line(format_args!("\nThe sandboxes are deleted.\n  $ arenite rm {}", made.join(" ")));
        for name in made {
            for attempt in 1.. {
                match self.client.delete(&format!("{SANDBOXES}/{name}")).await {
                    // A create or a fork that was interrupted may just have finished, or never started.
                    Err(failure) if failure.status() == Some(404) && !is_done && attempt <= 2 => {}
                    Ok(()) => break,
                    Err(failure) if failure.status() == Some(404) => break,
                    Err(failure) if attempt == DELETE_TRIES => {
                        eprintln!("warning: sandbox {name} is left: {}", failure.whole());
                        break;
                    }
                    Err(_) => {}
                }
                sleep(DELETE_INTERVAL).await;
            }
        }
    }

    async fn call(&self, path: &str, request: &Value) -> Result<(), Failure> {
        let path = format!("/sandbox/{}/v1/{path}", self.name);
        self.client.post::<wire::Envelope<Value>>(&path, request).await?.into_data().map(drop)
    }

    async fn exec(&self, line: &str) -> Result<Ran, Failure> {
        self.exec_in(&self.name, line).await
    }

    async fn exec_in(&self, sandbox: &str, line: &str) -> Result<Ran, Failure> {
        // One step, although it takes several calls.
        let client = self.client.recorded_as("exec", &[])?;
        let result = Command::new(sandbox, line).whole(&client, "").await;
        client.end_command(sandbox).await;
        let result = result?;
        let text = |name: &str| result[name].as_str().unwrap_or_default();
        Ok(Ran { output: format!("{}{}", text("stdout"), text("stderr")), exit_code: result["exit_code"].as_i64() })
    }
}

fn show(ran: &Ran) {
    for text in ran.output.lines() {
        output::line(format_args!("  {}", output::harmless(text)));
    }
    if let Some(code) = ran.exit_code.filter(|code| *code != 0) {
        output::line(format_args!("  exit code {code}"));
    }
}

fn skipped(why: &str) {
    output::line(format_args!("  skipped: {}", output::harmless(why)));
}
