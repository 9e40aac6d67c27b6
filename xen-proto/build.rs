//! The model check (`--cfg loom`) can be given a ring that is broken on purpose, by `RING_MUTANT=no_fence` or `no_final_check`; no
//! other build can. A variable, unlike a flag for all crates, lets loom be compiled once.

fn main() {
    println!("cargo::rerun-if-env-changed=RING_MUTANT");
    if std::env::var_os("CARGO_CFG_LOOM").is_some()
        && let Ok(mutant) = std::env::var("RING_MUTANT")
    {
        println!("cargo::rustc-cfg=mutant_{mutant}");
    }
}
