//! What is known about the command lines of common programs: which flags take a value, which are
//! two spellings of one flag, where options end. A program that is not here is read with care
//! (`argv`): what is not known to mean nothing stays a difference.

/// One program, or one of its subcommands.
pub(super) struct Program {
    /// Name, and the subcommand words after it (`git push`).
    pub name: &'static str,
    /// How many words after the name are subcommands.
    pub commands: usize,
    /// Flags without a value: `f=force u=set-upstream all`.
    pub switches: &'static str,
    /// Flags with a value: `n=namespace o=output`.
    pub values: &'static str,
    /// Options end after this many arguments (what follows belongs to another program).
    pub stop: Option<usize>,
}

/// A flag in the words of its program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// Without a value; its long name.
    Switch(&'static str),
    /// With a value; its long name.
    Value(&'static str),
}

impl Program {
    /// What is known of a flag (without dashes).
    pub fn flag(&self, name: &str) -> Option<Known> {
        let find = |list: &'static str| {
            list.split(' ')
                .find_map(|entry| match entry.split_once('=') {
                    Some((short, long)) => (name == short || name == long).then_some(long),
                    None => (name == entry).then_some(entry),
                })
        };
        find(self.switches)
            .map(Known::Switch)
            .or_else(|| find(self.values).map(Known::Value))
    }
}

/// The most specific entry for a command line: program and subcommands first.
pub(super) fn find(name: &str, words: &[&str]) -> Option<&'static Program> {
    PROGRAMS
        .iter()
        .filter(|p| {
            let mut parts = p.name.split(' ');
            parts.next() == Some(name)
                && parts
                    .enumerate()
                    .all(|(i, part)| words.get(i) == Some(&part))
        })
        .max_by_key(|p| p.name.len())
}

const KUBECTL: Program = Program {
    name: "kubectl",
    commands: 1,
    switches: "A=all-namespaces all R=recursive force now w=watch dry-run wait overwrite record prune server-side i=stdin t=tty q=quiet",
    values: "n=namespace f=filename l=selector o=output c=container k=kustomize p=patch context cluster user kubeconfig replicas image type timeout grace-period field-selector to-revision current-replicas subresource v=v s=server as token",
    stop: None,
};

const PROGRAMS: &[Program] = &[
    KUBECTL,
    Program {
        name: "oc",
        ..KUBECTL
    },
    Program {
        name: "git",
        commands: 1,
        switches: "q=quiet v=verbose f=force n=dry-run",
        values: "C=C c=c git-dir work-tree",
        stop: None,
    },
    Program {
        name: "git push",
        commands: 1,
        switches: "f=force u=set-upstream d=delete n=dry-run q=quiet v=verbose all tags mirror follow-tags no-verify atomic prune force-if-includes porcelain progress thin no-thin 4=ipv4 6=ipv6",
        values: "o=push-option repo C=C c=c receive-pack exec recurse-submodules signed",
        stop: None,
    },
    Program {
        name: "git commit",
        commands: 1,
        switches: "a=all s=signoff n=no-verify q=quiet v=verbose amend no-edit allow-empty allow-empty-message p=patch i=include o=only no-gpg-sign dry-run no-post-rewrite",
        values: "m=message F=file author date C=reuse-message c=reedit-message fixup squash cleanup trailer t=template",
        stop: None,
    },
    Program {
        name: "git tag",
        commands: 1,
        switches: "a=annotate s=sign f=force d=delete l=list v=verify no-sign",
        values: "m=message F=file u=local-user cleanup",
        stop: None,
    },
    Program {
        name: "git merge",
        commands: 1,
        switches: "no-ff ff ff-only squash no-commit commit abort continue q=quiet v=verbose no-verify s=signoff",
        values: "m=message F=file X=strategy-option strategy",
        stop: None,
    },
    Program {
        name: "curl",
        commands: 0,
        switches: "s=silent S=show-error L=location k=insecure f=fail v=verbose i=include I=head G=get N=no-buffer g=globoff compressed progress-bar http1.1 http2 fail-with-body retry-all-errors n=netrc q=disable l=list-only",
        values: "X=request H=header d=data data-raw data-binary data-urlencode data-ascii F=form form-string u=user o=output A=user-agent e=referer b=cookie c=cookie-jar m=max-time connect-timeout retry retry-delay retry-max-time T=upload-file w=write-out x=proxy url json cacert capath E=cert key resolve connect-to interface K=config oauth2-bearer aws-sigv4 url-query D=dump-header r=range z=time-cond",
        stop: None,
    },
    Program {
        name: "psql",
        commands: 0,
        switches: "w=no-password W=password X=no-psqlrc q=quiet t=tuples-only A=no-align 1=single-transaction a=echo-all e=echo-queries x=expanded L=log b=echo-errors",
        values: "h=host p=port U=username d=dbname c=command f=file v=set variable=set o=output P=pset F=field-separator",
        stop: None,
    },
    Program {
        name: "mysql",
        commands: 0,
        switches: "f=force t=table B=batch N=skip-column-names s=silent v=verbose compress",
        values: "e=execute h=host u=user P=port D=database S=socket ssl-mode protocol default-character-set defaults-file",
        stop: None,
    },
    Program {
        name: "redis-cli",
        commands: 0,
        switches: "c=cluster tls raw no-raw csv no-auth-warning",
        values: "h=host p=port a=pass n=db u=uri user eval s=socket cacert",
        stop: Some(0),
    },
    Program {
        name: "mongosh",
        commands: 0,
        switches: "quiet norc nodb shell no-quiet",
        values: "eval f=file u=username p=password host port authenticationDatabase",
        stop: None,
    },
    Program {
        name: "sendmail",
        commands: 0,
        switches: "t=read-recipients i=ignore-dots oi=ignore-dots v=verbose",
        values: "f=from F=full-name",
        stop: None,
    },
    Program {
        name: "mail",
        commands: 0,
        switches: "v=verbose E=no-empty",
        values: "s=subject c=cc b=bcc a=attach r=from q=quote",
        stop: None,
    },
    Program {
        name: "systemctl",
        commands: 1,
        switches: "user system now f=force q=quiet no-block no-pager runtime no-wall wait",
        values: "H=host M=machine s=signal t=type kill-whom job-mode root",
        stop: None,
    },
    Program {
        name: "helm",
        commands: 1,
        switches: "wait atomic i=install dry-run force create-namespace reuse-values reset-values cleanup-on-fail debug no-hooks devel recreate-pods skip-crds keep-history",
        values: "n=namespace f=values set set-string set-file set-json version timeout kube-context kubeconfig repo history-max description",
        stop: None,
    },
    Program {
        name: "docker",
        commands: 1,
        switches: "f=force q=quiet v=volumes a=all no-cache pull all-tags t=tty i=interactive d=detach",
        values: "t=tag build-arg platform target label time signal filter H=host context",
        stop: None,
    },
    Program {
        name: "docker run",
        commands: 1,
        switches: "d=detach i=interactive t=tty rm privileged init q=quiet read-only P=publish-all",
        values: "name p=publish e=env v=volume l=label u=user w=workdir m=memory cpus net=network network restart entrypoint env-file h=hostname platform add-host cap-add cap-drop device gpus mount pull tmpfs ulimit security-opt log-driver label-file",
        stop: Some(1),
    },
    Program {
        name: "docker exec",
        commands: 1,
        switches: "d=detach i=interactive t=tty privileged",
        values: "e=env u=user w=workdir env-file",
        stop: Some(1),
    },
    Program {
        name: "npm",
        commands: 1,
        switches: "dry-run f=force g=global D=save-dev E=save-exact ignore-scripts provenance silent",
        values: "tag registry access otp w=workspace prefix loglevel",
        stop: None,
    },
    Program {
        name: "gh",
        commands: 2,
        switches: "w=web",
        values: "t=title b=body a=assignee l=label m=milestone p=project R=repo F=body-file r=reviewer B=base H=head f=raw-field",
        stop: None,
    },
    Program {
        name: "gh pr create",
        commands: 2,
        switches: "d=draft f=fill w=web dry-run no-maintainer-edit",
        values: "B=base H=head t=title b=body a=assignee l=label r=reviewer m=milestone p=project R=repo F=body-file T=template",
        stop: None,
    },
    Program {
        name: "gh pr merge",
        commands: 2,
        switches: "s=squash r=rebase m=merge d=delete-branch auto admin disable-auto",
        values: "t=subject b=body R=repo F=body-file match-head-commit",
        stop: None,
    },
    Program {
        name: "aws",
        commands: 2,
        switches: "recursive dryrun dry-run no-dry-run force no-cli-pager debug no-paginate no-verify-ssl delete quiet no-sign-request only-show-errors",
        values: "profile region endpoint-url output query client-token client-request-token",
        stop: None,
    },
    Program {
        name: "terraform",
        commands: 1,
        switches: "auto-approve destroy refresh-only no-color json compact-warnings upgrade reconfigure migrate-state force",
        values: "var var-file target replace state state-out lock lock-timeout parallelism input chdir backend-config refresh",
        stop: None,
    },
    Program {
        name: "ssh",
        commands: 0,
        switches: "A=A a=a C=C f=f G=G g=g K=K k=k M=M N=N n=n q=quiet s=s T=T t=t V=V v=verbose X=X x=x Y=Y y=y 4=4 6=6",
        values: "p=port i=identity l=login o=option F=config J=jump L=L R=R D=D W=W b=b c=c e=e m=m O=O S=S w=w E=E Q=Q",
        stop: Some(1),
    },
    Program {
        name: "scp",
        commands: 0,
        switches: "r=recursive p=preserve q=quiet C=C B=B v=verbose 3=3 4=4 6=6 O=O T=T",
        values: "P=port i=identity o=option F=config l=limit c=cipher S=S J=jump",
        stop: None,
    },
    Program {
        name: "rsync",
        commands: 0,
        switches: "a=archive v=verbose z=compress r=recursive n=dry-run u=update h=human-readable q=quiet t=times p=perms o=owner g=group l=links c=checksum x=one-file-system P=P delete delete-after delete-excluded delete-before inplace partial progress ignore-existing existing remove-source-files stats i=itemize-changes W=whole-file numeric-ids",
        values: "e=rsh bwlimit exclude-from include-from files-from chmod chown timeout port backup-dir suffix max-size min-size max-delete partial-dir compare-dest link-dest log-file",
        stop: None,
    },
    Program {
        name: "sudo",
        commands: 0,
        switches: "n=non-interactive E=preserve-env H=set-home i=login k=k S=stdin",
        values: "u=user g=group h=host p=prompt",
        stop: Some(0),
    },
    Program {
        name: "bash",
        commands: 0,
        switches: "e=e u=u x=x l=login i=i norc noprofile",
        values: "c=c o=o",
        stop: Some(0),
    },
    Program {
        name: "sh",
        commands: 0,
        switches: "e=e u=u x=x l=login",
        values: "c=c o=o",
        stop: Some(0),
    },
    Program {
        name: "wget",
        commands: 0,
        switches: "q=quiet c=continue nv=no-verbose S=server-response no-check-certificate N=timestamping",
        values: "O=output-document P=directory-prefix header method body-data body-file post-data post-file user password T=timeout t=tries U=user-agent",
        stop: None,
    },
    Program {
        name: "gcloud",
        commands: 3,
        switches: "q=quiet async force no-user-output-enabled",
        values: "project region zone account format configuration impersonate-service-account",
        stop: None,
    },
];
