#[derive(Debug, clap::Args)]
pub(crate) struct BenchArguments {}
pub(crate) fn run(_place: &crate::place::Place, _o: &BenchArguments) -> anyhow::Result<()> {
    Ok(())
}
