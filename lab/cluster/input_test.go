package cluster_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestBadInput: each mistake gets a one-line error with advice, and leaves no files.
func TestBadInput(t *testing.T) {
	beside(t, 0)
	unknown, wrong := labFile(t, "nodes: 1\nproxy_mode: iptables\n"), labFile(t, "nodes: many\n")
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"up", "--ipv6", "--dual-stack"}, "exclude each other"},
		{[]string{"up", "--unknown"}, "unknown flag: --unknown"},
		{[]string{"up", "--node", "1"}, "hint: did you mean --nodes?"},
		{[]string{"up", "--config", "/nonexistent"}, "no such file"},
		{[]string{"up", "--config", unknown}, "no flag \"proxy_mode\"\nhint: did you mean proxy-mode?"},
		{[]string{"up", "--config", wrong}, "nodes: invalid argument \"many\""},
		{[]string{"list", "-o", "xml"}, "hint: choose one of table"},
		{[]string{"up", "now"}, `unknown command "now"`},
		{[]string{"status"}, " up starts one"},
		{[]string{"kubeconfig"}, " up starts one"},
		{[]string{"load", "x.tar"}, " up starts one"},
		{[]string{"node", "1", "--", "true"}, " up starts one"},
		{[]string{"client", "--", "true"}, " up starts one"},
		{[]string{"fault", "node", "1", "kill"}, " up starts one"},
		{[]string{"kubectl", "get", "nodes"}, " up starts one"},
	} {
		l := newLab(t)
		l.refused(c.want, c.args...)
		l.gone()
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"upp"}, "unknown command \"upp\"\nhint: did you mean fairway-lab up?"},
		{[]string{"frobnicate"}, "unknown command \"frobnicate\"\nhint: fairway-lab --help lists the commands"},
		{[]string{"--name", "A b/..", "status"}, "is not a lab's name"},
		{[]string{"--name", "../x", "kubectl", "get", "nodes"}, "is not a lab's name"},
		{[]string{"--name", "nope", "status"}, "fairway-lab --name nope up starts one"},
	} {
		refused(t, c.want, exec.Command(built.lab, c.args...))
	}
}

// TestBadOptions: up refuses impossible options before it makes any part of the lab.
func TestBadOptions(t *testing.T) {
	beside(t, 0)
	taken, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	port := fmt.Sprint(taken.Addr().(*net.TCPAddr).Port)
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--proxy-mode", "magic"}, "choose one of nftables"},
		{[]string{"--load-balancer", "magic"}, "choose one of l2, bgp, servicelb, edge, none"},
		{[]string{"--load-balancer", "edge", "--edge-target", "pod"}, "choose one of instance, ip"},
		{[]string{"--edge-target", "ip"}, "is for --load-balancer edge"},
		{[]string{"--load-balancer", "edge", "--subnets", "2", "--pod-network", "auto"}, "is for nodes in one subnet"},
		{[]string{"--subnets", "2"}, "hint: choose --pod-network auto, vxlan or bgp"},
		{[]string{"--pod-network", "bgp", "--load-balancer", "none"}, "hint: choose --load-balancer l2 or bgp"},
		{[]string{"--pod-network", "bridge", "--cni-plugins", "/nonexistent"}, "hint: make cni-plugins builds them"},
		{[]string{"--pod-network", "bridge", "--subnets", "2"}, "is for nodes in one subnet"},
		{[]string{"--subnets", "3"}, "choose 1 or 2"},
		{[]string{"--egress-addresses", "--load-balancer", "none"}, "needs the speaker"},
		{[]string{"--nodes", "0"}, "choose from 1 to"},
		{[]string{"--api-port", port}, "port " + port + " of 127.0.0.1 is in use\nhint: choose another with --api-port"},
		{[]string{"--publish", port + ":30080"}, "port " + port + " of 127.0.0.1 is in use\nhint: choose another with --publish"},
		{[]string{"--publish", "8080"}, "hint: give two ports, as 8080:30080"},
		{[]string{"--publish", "8080:30080", "--publish", "8080:30081"}, "named twice"},
		{[]string{"--api-port", "70000"}, "choose from 1 to 65535"},
		{[]string{"--kube-proxy", "/etc/passwd"}, "is not a program"},
		{[]string{"--kube-proxy", "/nonexistent"}, "no such file"},
		{[]string{"--like", "magic"}, "choose kubeadm"},
		{[]string{"--like", "kubeadm"}, "hint: leave it out, and run fairway install later"}, // upArgs has --deploy
		{[]string{"--image", "/nonexistent"}, "make image builds it"},
		{[]string{"--deploy", "/nonexistent"}, "no such file"},
		{[]string{"--images-dir", ""}, "no pod starts without the image of"},
		{[]string{"--image", otherImage(t)}, "which make image wrote beside it: both are to be of one make image"},
	} {
		l := newLab(t)
		l.refused(c.want, l.upArgs(c.args...)...)
		l.gone()
	}
}

// labFile writes a file for up --config.
func labFile(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "lab.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestHelp: the help of every command shows fairway-lab's flags and no flags of libraries.
func TestHelp(t *testing.T) {
	beside(t, 0)
	for _, c := range []string{"", "up", "down", "list", "status", "logs", "load", "node", "client", "kubeconfig", "version"} {
		out, err := exec.Command(built.lab, append(strings.Fields(c), "--help")...).CombinedOutput()
		if err != nil || strings.Contains(string(out), "--version=raw") || !strings.Contains(string(out), "--name") {
			t.Errorf("%s --help: %v\n%s", c, err, out)
		}
	}
}

// TestNotRoot runs up as a user without rights.
func TestNotRoot(t *testing.T) {
	beside(t, 0)
	l := newLab(t)
	// Other users may have no access to the checkout.
	dir, err := os.MkdirTemp("", "fairway-lab-nobody-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	binary, err := os.ReadFile(built.lab)
	if err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(dir, "fairway-lab")
	if err := errors.Join(os.Chmod(dir, 0o755), os.WriteFile(copied, binary, 0o755)); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"up", "status", "node 1 -- true", "load x.tar", "logs", "down"} {
		out, err := exec.Command("setpriv", append([]string{"--reuid=65534", "--regid=65534", "--clear-groups",
			copied, "--name", l.name}, strings.Fields(line)...)...).CombinedOutput()
		if err == nil || !strings.HasPrefix(string(out), "error: only root may use a lab") || !strings.HasSuffix(string(out), "\nhint: sudo fairway-lab …\n") || strings.Count(string(out), "\n") != 2 {
			t.Errorf("%s without root: %v, says %q", line, err, out)
		}
	}
	l.gone()
}

// TestMissingPrograms runs up without the needed programs.
func TestMissingPrograms(t *testing.T) {
	beside(t, 0)
	l := newLab(t)
	cmd := l.cmd(l.upArgs("--load-balancer", "bgp")...)
	cmd.Env = append(os.Environ(), "PATH="+t.TempDir())
	out, err := cmd.CombinedOutput()
	for _, want := range []string{"runc", "nft", "apt-get install containerd runc nftables", "bird2"} {
		if err == nil || !strings.Contains(string(out), want) {
			t.Errorf("up without programs: %v, does not say %q: %s", err, want, out)
		}
	}
	l.gone()
}

// TestNoInotify runs up in a user namespace with a small limit of inotify instances.
func TestNoInotify(t *testing.T) {
	beside(t, 0)
	l := newLab(t)
	up := l.cmd(l.upArgs("--nodes", "2")...)
	limited := exec.Command("unshare", append([]string{"--map-root-user", "sh", "-c",
		`echo 20 >/proc/sys/user/max_inotify_instances && exec "$@"`, "sh"}, up.Args...)...)
	refused(t, "error: a lab of 2 nodes needs 23 instances of inotify, and 20 are left", limited)
	again := exec.Command("unshare", limited.Args[1:]...)
	refused(t, "hint: sysctl -w fs.inotify.max_user_instances=", again)
	l.gone()
}

// TestBrokenUnit starts a node with a program that keeps ending. up must name the program and undo its work.
func TestBrokenUnit(t *testing.T) {
	beside(t, 1)
	path := "PATH=" + filepath.Dir(broken(t, "containerd")) + ":" + os.Getenv("PATH")
	for want, args := range map[string][]string{
		"image-store said last: I cannot go on": {"--nodes", "1"},
		// Without images, because otherwise the store's containerd would fail first.
		"containerd keeps ending; it said last: I cannot go on": {"--nodes", "1", "--deploy", "", "--image", "", "--images-dir", ""},
	} {
		l := newLab(t)
		cmd := l.cmd(l.upArgs(args...)...)
		cmd.Env = append(os.Environ(), path)
		refused(t, want, cmd)
		l.gone()
	}
}

// TestBrokenKubeProxy starts a lab with a kube-proxy that keeps ending.
func TestBrokenKubeProxy(t *testing.T) {
	beside(t, 1)
	l := newLab(t)
	l.refused("kube-proxy keeps ending; it said last: I cannot go on", l.upArgs("--nodes", "1", "--kube-proxy", broken(t, "kube-proxy"))...)
	l.gone()
}

// broken writes a program that ends at once.
func broken(t *testing.T, name string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte("#!/bin/sh\necho I cannot go on >&2\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return file
}

// otherImage is the archive under test, next to a file that names another image.
func otherImage(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "image.tar")
	component := "images:\n- {name: ghcr.io/fairway-net/fairway, newTag: other}\n"
	if err := errors.Join(os.Symlink(built.image, file), os.WriteFile(strings.TrimSuffix(file, ".tar")+".yaml", []byte(component), 0o600)); err != nil {
		t.Fatal(err)
	}
	return file
}
