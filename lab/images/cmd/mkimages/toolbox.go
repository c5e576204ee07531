package main

import (
	"fmt"
	"os"
	"os/exec"
	"path"
	"strings"

	"github.com/fairway-net/fairway/internal/image"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// tools are taken from this machine as they are, and the package that has each, for the message when it is missing.
// Everything else a shell user expects comes from busybox's applets.
var tools = []struct{ program, pkg string }{
	{"dash", "dash"}, {"bash", "bash"}, {"curl", "curl"}, {"wget", "wget"}, {"nc", "netcat-openbsd"},
	{"dig", "bind9-dnsutils"}, {"nslookup", "bind9-dnsutils"},
	{"ip", "iproute2"}, {"ss", "iproute2"}, {"tcpdump", "tcpdump"}, {"ping", "iputils-ping"}, {"ps", "procps"},
	{"busybox", "busybox"},
}

// entrypoint is the curl image's: what is not a program is for curl, as in `kubectl run --image=curlimages/curl -- -s
// http://…`, while `-- /bin/sh` is a shell.
const entrypoint = `#!/bin/sh
if command -v -- "$1" >/dev/null 2>&1; then exec "$@"; fi
exec curl "$@"
`

// toolboxImages makes one layer and the images that share it; they differ in what runs when nothing is said.
func toolboxImages() ([]image.Image, error) {
	var t image.Tree
	have := make(map[string]bool)
	for _, tool := range tools {
		at, err := image.Find(tool.program)
		if err != nil {
			return nil, fmt.Errorf("%w [run `make deps`, or `apt-get install %s`]", err, tool.pkg)
		}
		t.Program(at)
		have[tool.program] = true
	}
	if err := applets(&t, have); err != nil {
		return nil, err
	}
	// Debian's busybox, as a shell, prefers its applets over programs in PATH: sh must be dash.
	t.Link("/bin/sh", "dash")
	t.File("/usr/bin/curl-entrypoint", 0o755, entrypoint)
	accounts(&t)
	if err := slim(&t); err != nil {
		return nil, err
	}
	layer, err := t.Layer()
	if err != nil {
		return nil, fmt.Errorf("toolbox: %w", err)
	}
	of := func(name string, entry, cmd []string) image.Image {
		return image.Image{Names: []string{name}, Layers: []*image.Layer{layer}, Config: v1.Config{
			Entrypoint: entry, Cmd: cmd, Env: []string{paths}, WorkingDir: "/",
		}}
	}
	return []image.Image{
		of("docker.io/library/busybox:latest", nil, []string{"sh"}),
		of("docker.io/curlimages/curl:latest", []string{"/usr/bin/curl-entrypoint"}, []string{"--help"}),
		of("gcr.io/kubernetes-e2e-test-images/dnsutils:1.3", nil, []string{"sleep", "3600"}),
		of("docker.io/library/ubuntu:latest", nil, []string{"bash"}),
	}, nil
}

// applets links every applet of busybox that no real program stands for.
func applets(t *image.Tree, have map[string]bool) error {
	at, err := image.Find("busybox")
	if err != nil {
		return err
	}
	out, err := exec.Command(at, "--list").Output()
	if err != nil {
		return fmt.Errorf("%s --list: %w", at, err)
	}
	skip := map[string]bool{"sh": true, "ash": true, "nslookup": true}
	for _, applet := range strings.Fields(string(out)) {
		if !have[applet] && !skip[applet] {
			t.Link(path.Join("/bin", applet), "busybox")
		}
	}
	return nil
}

// accounts adds what programs look up in /etc: tcpdump gives up its rights to the user of its name.
func accounts(t *image.Tree) {
	t.File("/etc/passwd", 0o644, "root:x:0:0:root:/root:/bin/sh\ntcpdump:x:100:100::/:/bin/false\nnobody:x:65534:65534::/:/bin/false\n")
	t.File("/etc/group", 0o644, "root:x:0:\ntcpdump:x:100:\nnogroup:x:65534:\n")
	t.File("/etc/nsswitch.conf", 0o644, "passwd: files\ngroup: files\nhosts: files dns\n")
	t.Dir("/root", 0o700)
	t.Dir("/tmp", 0o777|os.ModeSticky)
}
