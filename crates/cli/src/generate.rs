//! `hiroba generate DIR`: writes manual pages and shell completions, for `cargo xtask install`.

use std::path::Path;

use clap_complete::Shell;

use hiroba_launch::failure::{Failure, system_words};

/// Writes both under `share`, where manual readers and shells look for them.
pub fn generate(command: clap::Command, share: &Path) -> Result<u8, Failure> {
    let failed = |error: std::io::Error| {
        Failure::new(format!("cannot write below {}: {}", share.display(), system_words(&error)))
    };
    let pages = share.join("man/man1");
    std::fs::create_dir_all(&pages).map_err(failed)?;
    clap_mangen::generate_to(command.clone(), &pages).map_err(failed)?;
    let completions = [
        (Shell::Bash, "bash-completion/completions/hiroba"),
        (Shell::Zsh, "zsh/site-functions/_hiroba"),
        (Shell::Fish, "fish/vendor_completions.d/hiroba.fish"),
    ];
    for (shell, file) in completions {
        let file = share.join(file);
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut command.clone(), "hiroba", &mut text);
        std::fs::create_dir_all(file.parent().unwrap_or(share)).map_err(failed)?;
        std::fs::write(&file, text).map_err(failed)?;
    }
    Ok(0)
}
