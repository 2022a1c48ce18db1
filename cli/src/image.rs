//! `outgate image` and `outgate kernel`: what guests boot.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use outgate_runtime::{Image, ImageStore, Kernel, Paths, Progress, install_debian_kernel};

use crate::exit::Failure;
use crate::report::Reporter;
use crate::run::{failure, image_source};
use crate::{exit, output};

#[derive(Debug, Subcommand)]
pub(crate) enum ImageCommand {
    /// Build an image, or find the one built before
    Build(Build),
    /// List the images of the cache
    Ls,
    /// Remove an image of the cache
    Rm {
        /// Its source, or the beginning of its digest
        name: String,
    },
    /// Compare an image with what was built, byte by byte
    Verify(Name),
}

#[derive(Debug, Args)]
pub(crate) struct Name {
    /// `default`, `debian:SUITE`, `debian:SUITE+PACKAGE,…`, a folder, or an erofs, squashfs or ext4
    /// file; a path has a `/` in it
    #[arg(default_value = "default")]
    name: String,
}

#[derive(Debug, Args)]
pub(crate) struct Build {
    #[command(flatten)]
    source: Name,
    /// Build anew with the newest packages, whatever the cache has
    #[arg(long)]
    fresh: bool,
    /// No progress line
    #[arg(long, short)]
    quiet: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum KernelCommand {
    /// Fetch the distribution's cloud kernel and unpack what a guest needs of it
    Install,
    /// Say which kernel guests boot
    Show,
}

impl ImageCommand {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let paths = Paths::from_env().map_err(|error| failure(&error))?;
        let store = ImageStore::new(&paths);
        match self {
            Self::Build(build) => {
                let source = image_source(&build.source.name)?;
                let shown = progress(build.quiet);
                let image = match build.fresh {
                    true => store.rebuild(&source, &shown),
                    false => store.ensure(&source, &shown),
                };
                show(&image.map_err(|error| failure(&error))?)?;
            }
            Self::Ls => {
                for image in store.list().map_err(|error| failure(&error))? {
                    show(&image)?;
                }
            }
            Self::Rm { name } => {
                let image = store.remove(&name).map_err(|error| failure(&error))?;
                output::line(format_args!("removed {}", image.source()))?;
            }
            Self::Verify(name) => {
                let source = image_source(&name.name)?.to_string();
                let images = store.list().map_err(|error| failure(&error))?;
                let image = images.iter().find(|image| image.source() == source);
                let image = image.ok_or_else(|| {
                    let message = format!("the cache has no image `{source}`; build it first");
                    Failure::new(exit::Code::Image, message)
                })?;
                store.verify(image).map_err(|error| failure(&error))?;
                output::line(format_args!("{source}: ok, sha256:{}", image.digest()))?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl KernelCommand {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let paths = Paths::from_env().map_err(|error| failure(&error))?;
        let kernel = match self {
            Self::Install => install_debian_kernel(&paths, &progress(false)),
            Self::Show => Kernel::find(&paths),
        };
        let kernel = kernel.map_err(|error| failure(&error))?;
        output::line(format_args!(
            "{} {}",
            kernel.name(),
            kernel.image().display()
        ))?;
        Ok(ExitCode::SUCCESS)
    }
}

fn show(image: &Image) -> std::io::Result<()> {
    let digest = image.digest().get(..12).unwrap_or_default();
    output::line(format_args!(
        "{digest}  {:>6} MiB  {}  {}",
        image.size() >> 20,
        image.source(),
        image.path().display()
    ))
}

fn progress(quiet: bool) -> Progress {
    let reporter = Reporter::new(false, quiet);
    Progress::new(move |event| reporter.progress(event.step, &event.detail))
}
