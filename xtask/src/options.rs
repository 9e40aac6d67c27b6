//! Options and answers that subcommands share.

use clap::ValueEnum;
use nested_tests::qemu::Accel;

/// What a subcommand found out, when it could run at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// All that it stands for holds.
    Held,
    /// Something does not.
    DidNotHold,
}

/// What executes the nested machine.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum AccelChoice {
    /// KVM where the CPU offers nested virtualisation, else TCG.
    Auto,
    /// QEMU's translator.
    Tcg,
    /// The host's hypervisor.
    Kvm,
}

impl AccelChoice {
    /// The choice made.
    pub(crate) fn resolve(self) -> Accel {
        match self {
            Self::Auto => Accel::detect(),
            Self::Tcg => Accel::Tcg,
            Self::Kvm => Accel::Kvm,
        }
    }
}

/// Options of the subcommands that boot.
#[derive(Debug, clap::Args)]
pub(crate) struct BootOptions {
    /// What executes the nested machine
    #[arg(long, value_enum, default_value = "auto")]
    pub accel: AccelChoice,
}
