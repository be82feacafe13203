//! The stages that a target needs, with their bases.

use std::collections::{BTreeMap, BTreeSet};

use arenite_model::ImageName;

use super::words::Text;
use super::{Base, Imagefile, Instruction, ParseError, cut, image_name};

/// The source of files that are not in the context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StageSource {
    /// An earlier stage's index.
    Stage(usize),
    /// A local image.
    Image(ImageName),
}

/// The stages of a build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Indexes of the stages to build, in the order of the file, with their bases. The last one is the target.
    pub stages: Vec<(usize, Base)>,
    /// Values of the ARGs before the first FROM.
    pub globals: BTreeMap<String, String>,
}

/// ARGs with values of this host, without a declaration before FROM.
pub(super) fn platform_arguments() -> BTreeMap<String, String> {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let platform = format!("linux/{architecture}");
    let mut all = BTreeMap::new();
    for side in ["TARGET", "BUILD"] {
        all.insert(format!("{side}PLATFORM"), platform.clone());
        all.insert(format!("{side}OS"), "linux".to_owned());
        all.insert(format!("{side}ARCH"), architecture.to_owned());
        all.insert(format!("{side}VARIANT"), String::new());
    }
    all
}

impl Imagefile {
    /// Selects the stages that the target needs: its own, its bases, and those that it copies or mounts from. The target is a
    /// stage's name or index, or the last stage.
    pub fn plan(&self, target: Option<&str>, build_args: &BTreeMap<String, String>) -> Result<Plan, ParseError> {
        let globals = self.globals(build_args)?;
        let last = self.stages.len() - 1;
        let target = match target {
            None => last,
            Some(name) => {
                let index = name.parse().ok().filter(|index: &usize| *index <= last);
                self.stage_named(name).or(index).ok_or_else(|| {
                    let known: Vec<&str> = self.stages.iter().filter_map(|stage| stage.name.as_deref()).collect();
                    ParseError::new(self.stages[last].source.line, format!("there is no stage {:?}", cut(name)))
                        .hint(format!("known are the stages 0 to {last}, and by name: {}", known.join(", ")))
                })?
            }
        };
        let mut bases = BTreeMap::new();
        let mut wanted = BTreeSet::from([target]);
        // A stage needs earlier ones only, so each is looked at after all that may need it.
        while let Some(index) = wanted.pop_last() {
            let stage = &self.stages[index];
            let line = stage.source.line;
            let expand = |text: &Text| text.expand(&globals).map_err(|message| ParseError::new(line, message));
            if let Some(platform) = &stage.platform {
                check_platform(line, &expand(platform)?)?;
            }
            let base = self.base(line, &expand(&stage.from)?, index)?;
            if let Base::Stage(below) = base {
                wanted.insert(below);
            }
            bases.insert(index, base);
            for step in &stage.steps {
                let names: Vec<&String> = match &step.instruction {
                    Instruction::Copy(copy) => copy.from.iter().collect(),
                    Instruction::Run(run) => run.mounts.iter().filter_map(|mount| mount.kind.from()).collect(),
                    _ => continue,
                };
                for name in names {
                    if let StageSource::Stage(index) = self.source_of(step.source.line, name, index)? {
                        wanted.insert(index);
                    }
                }
            }
        }
        Ok(Plan { stages: bases.into_iter().collect(), globals })
    }

    /// The images that the stages of a plan need, each once.
    pub fn images(&self, plan: &Plan) -> Result<BTreeSet<ImageName>, ParseError> {
        let mut images = BTreeSet::new();
        for (index, base) in &plan.stages {
            if let Base::Image(name) = base {
                images.insert(name.clone());
            }
            for step in &self.stages[*index].steps {
                let sources: Vec<&String> = match &step.instruction {
                    Instruction::Copy(copy) => copy.from.iter().collect(),
                    Instruction::Run(run) => run.mounts.iter().filter_map(|mount| mount.kind.from()).collect(),
                    _ => continue,
                };
                for name in sources {
                    if let StageSource::Image(image) = self.source_of(step.source.line, name, *index)? {
                        images.insert(image);
                    }
                }
            }
        }
        Ok(images)
    }

    /// Values of the ARGs before the first FROM, and those of the platform.
    fn globals(&self, build_args: &BTreeMap<String, String>) -> Result<BTreeMap<String, String>, ParseError> {
        let mut globals = platform_arguments();
        for argument in &self.arguments {
            let value = match (build_args.get(&argument.name), &argument.default) {
                (Some(given), _) => Some(given.clone()),
                (None, Some(default)) => {
                    Some(default.expand(&globals).map_err(|message| ParseError::new(argument.line, message))?)
                }
                (None, None) => None,
            };
            if let Some(value) = value {
                globals.insert(argument.name.clone(), value);
            }
        }
        Ok(globals)
    }

    /// The stage or image that `--from` names in the stage `index`.
    pub fn source_of(&self, line: usize, name: &str, index: usize) -> Result<StageSource, ParseError> {
        let number = name.parse().ok().filter(|_| name.bytes().all(|b| b.is_ascii_digit()));
        match self.stage_named(name).or(number) {
            Some(found) if found < index => Ok(StageSource::Stage(found)),
            Some(found) if found == index => {
                Err(ParseError::new(line, format!("the stage {:?} can't copy from itself", cut(name))))
            }
            Some(found) if found < self.stages.len() => {
                Err(ParseError::new(line, format!("the stage {:?} comes later in the file", cut(name)))
                    .hint("move it before this stage"))
            }
            Some(_) => Err(ParseError::new(line, format!("there is no stage {}", cut(name)))),
            None => image_name(line, name).map(StageSource::Image),
        }
    }
}

fn check_platform(line: usize, platform: &str) -> Result<(), ParseError> {
    let own = &platform_arguments()["TARGETPLATFORM"];
    let wanted = platform.to_ascii_lowercase().replace("x86_64", "amd64").replace("aarch64", "arm64");
    let wanted = wanted.strip_suffix("/v8").unwrap_or(&wanted);
    if wanted == own || Some(wanted) == own.strip_prefix("linux/") || wanted.is_empty() {
        return Ok(());
    }
    Err(ParseError::new(line, format!("not supported: the platform {:?}", cut(platform)))
        .hint(format!("this host builds for {own}; leave --platform out")))
}
