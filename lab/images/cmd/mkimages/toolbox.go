package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path"
	"strings"
	"time"

	"github.com/fairway-net/fairway/internal/image"
	"github.com/fairway-net/fairway/lab/toolbox"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// entrypoint is the entry point of the curl image. It runs its arguments if the first is a program, as in `-- /bin/sh`.
// Otherwise it passes them to curl, as in `kubectl run --image=curlimages/curl -- -s http://…`.
const entrypoint = `#!/bin/sh
if command -v -- "$1" >/dev/null 2>&1; then exec "$@"; fi
exec curl "$@"
`

// toolboxImages makes one layer and the images that share it. The images differ in their default command. The busybox
// image also has its own wget and nslookup, which come first in PATH.
func toolboxImages() ([]image.Image, error) {
	var t image.Tree
	have := make(map[string]bool)
	for _, tool := range toolbox.Tools {
		at, err := image.Find(tool.Program)
		if err != nil {
			return nil, fmt.Errorf("%w [run `make deps`, or `apt-get install %s`]", err, tool.Package)
		}
		t.Program(at)
		have[tool.Program] = true
	}
	if err := applets(&t, have); err != nil {
		return nil, err
	}
	if err := toolbox.AddIptables(&t); err != nil {
		return nil, err
	}
	for _, name := range []string{"iptables", "ip6tables"} {
		t.File("/usr/local/sbin/"+name, 0o755, toolbox.Iptables)
	}
	// Debian's busybox, as a shell, prefers its applets over programs in PATH, so sh must be dash.
	t.Link("/bin/sh", "dash")
	t.File("/usr/bin/curl-entrypoint", 0o755, entrypoint)
	t.File("/usr/local/bin/nslookup", 0o755, toolbox.Nslookup)
	for _, name := range []string{"apt", "apt-get"} {
		t.File("/usr/bin/"+name, 0o755, toolbox.Apt)
	}
	t.File(toolbox.Packages, 0o644, toolbox.List())
	accounts(&t)
	if err := slim(&t); err != nil {
		return nil, err
	}
	layer, err := t.Layer()
	if err != nil {
		return nil, fmt.Errorf("toolbox: %w", err)
	}
	own, err := busyboxOwn()
	if err != nil {
		return nil, err
	}
	of := func(name string, entry, cmd []string, more ...*image.Layer) image.Image {
		return image.Image{Names: []string{name}, Layers: append([]*image.Layer{layer}, more...), Config: v1.Config{
			Entrypoint: entry, Cmd: cmd, Env: []string{paths}, WorkingDir: "/",
		}}
	}
	return []image.Image{
		of("docker.io/library/busybox:latest", nil, []string{"sh"}, own),
		of("docker.io/curlimages/curl:latest", []string{"/usr/bin/curl-entrypoint"}, []string{"--help"}),
		of("gcr.io/kubernetes-e2e-test-images/dnsutils:1.3", nil, []string{"sleep", "3600"}),
		of("docker.io/library/ubuntu:latest", nil, []string{"bash"}),
	}, nil
}

// applets links every applet of busybox for which the toolbox has no real program.
func applets(t *image.Tree, have map[string]bool) error {
	at, err := image.Find("busybox")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, at, "--list").Output()
	if err != nil {
		return fmt.Errorf("%s --list: %w", at, err)
	}
	skip := map[string]bool{"sh": true, "ash": true}
	for _, applet := range strings.Fields(string(out)) {
		if !have[applet] && !skip[applet] {
			t.Link(path.Join("/bin", applet), "busybox")
		}
	}
	return nil
}

// busyboxOwn returns the layer with the programs that users of the busybox image expect from busybox. An example is
// wget with its message "bad address".
func busyboxOwn() (*image.Layer, error) {
	var t image.Tree
	t.File("/usr/local/bin/wget", 0o755, toolbox.Wget)
	t.Link("/usr/local/bin/nslookup", "/bin/busybox")
	return t.Layer()
}

// accounts adds the files in /etc that programs read. tcpdump switches to the user tcpdump.
func accounts(t *image.Tree) {
	t.File("/etc/passwd", 0o644, "root:x:0:0:root:/root:/bin/sh\ntcpdump:x:100:100::/:/bin/false\nnobody:x:65534:65534::/:/bin/false\n")
	t.File("/etc/group", 0o644, "root:x:0:\ntcpdump:x:100:\nnogroup:x:65534:\n")
	t.File("/etc/nsswitch.conf", 0o644, "passwd: files\ngroup: files\nhosts: files dns\n")
	t.Dir("/root", 0o700)
	t.Dir("/tmp", 0o777|os.ModeSticky)
	t.Dir("/run", 0o755)
}
