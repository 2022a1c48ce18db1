//! Outgate's runtime: microVMs, their kernels and images, and the host side of the control API.
//!
//! A sandbox is one QEMU process in an empty network namespace under a uid of its own. Its only
//! network is the socket that the caller passes in; this crate never looks at the traffic, holds no
//! policy and no credential, and gives the guest none.
//!
//! The way of one start: [`Paths`] → [`Kernel::find`] → [`ImageStore::ensure`] →
//! [`accelerator::choose`] → [`Sandbox::start`] → [`Sandbox::exec`]. Programs that start sandboxes
//! call [`janitor::main_if_requested`] first thing in `main`.

pub mod accelerator;
mod backing;
mod cgroup;
mod console;
mod control;
pub mod doctor;
mod error;
mod exec;
mod fingerprint;
pub mod image;
mod initrd;
pub mod janitor;
mod kernel;
mod launch;
mod machine;
mod overlay;
mod paths;
mod progress;
mod qemu;
pub mod qmp;
mod sandbox;
mod sys;
mod tool;
mod tsc;
mod vm_dir;

pub use accelerator::{Accelerator, AcceleratorChoice};
pub use error::{ErrorClass, RuntimeError};
pub use exec::{ExecControl, ExecHandle, ExecInput};
pub use image::{Image, ImageSource, ImageStore};
pub use kernel::{Kernel, install_debian_kernel};
pub use outgate_pid1::api;
pub use paths::Paths;
pub use progress::{Progress, ProgressEvent};
pub use sandbox::{GuestSetup, Phase, Sandbox, SandboxId, SandboxSpec, StartReport};
