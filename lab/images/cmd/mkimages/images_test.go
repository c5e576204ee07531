package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestImages makes all images as the Makefile does, and runs their programs in separate root directories.
func TestImages(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("needs root, for chroot and namespaces: run it with sudo")
	}
	out := t.TempDir()
	must(t, run(t.Context(), out, ""))
	t.Run("pause", func(t *testing.T) { runPause(t, unpack(t, filepath.Join(out, "pause.tar"))) })
	t.Run("toolbox", func(t *testing.T) {
		root := unpack(t, filepath.Join(out, "toolbox.tar"))
		runTools(t, root)
		runApt(t, root)
	})
	t.Run("web", func(t *testing.T) {
		root := unpack(t, filepath.Join(out, "web.tar"))
		if got, _ := inside(root, "/usr/bin/web").CombinedOutput(); !strings.Contains(string(got), "web jobs") {
			t.Errorf("web without arguments says %q, want advice", got)
		}
	})
}

// runPause sends SIGTERM to pause, which must exit with success. The signal may arrive before the program handles it,
// and then the program fails. So each try waits a little longer than the one before.
func runPause(t *testing.T, root string) {
	var err error
	for wait := time.Millisecond; wait < 2*time.Second; wait *= 2 {
		cmd := inside(root, "/pause")
		must(t, cmd.Start())
		time.Sleep(wait)
		must(t, cmd.Process.Signal(syscall.SIGTERM))
		if err = cmd.Wait(); err == nil {
			return
		}
	}
	t.Errorf("pause ends on SIGTERM with %v, want success", err)
}

// runTools starts every tool once. A tool that starts has all its libraries, including the emptied one.
func runTools(t *testing.T, root string) {
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"/bin/sh":                  {[]string{"-c", "echo $0 works"}, "/bin/sh works"},
		"/bin/bash":                {[]string{"--version"}, "GNU bash"},
		"/usr/bin/curl":            {[]string{"--version"}, "libcurl"},
		"/usr/bin/curl-entrypoint": {[]string{"/bin/echo", "a program"}, "a program"},
		"/usr/bin/wget":            {[]string{"--version"}, "GNU Wget"},
		"/usr/bin/getent":          {[]string{"passwd", "root"}, "root:x:0"},
		"/usr/bin/nc":              {[]string{"-h"}, "OpenBSD netcat"},
		"/usr/bin/dig":             {[]string{"+tries=1", "@127.0.0.1", "x.example"}, "no servers could be reached"},
		"/usr/bin/nslookup":        {[]string{"-retry=0", "x.example", "127.0.0.1"}, "no servers could be reached"},
		"/bin/ip":                  {[]string{"link", "show", "lo"}, "LOOPBACK"},
		"/usr/bin/tcpdump":         {[]string{"--version"}, "libpcap"},
		"/bin/ping":                {[]string{"-V"}, "ping from iputils"},
		"/bin/ps":                  {nil, "mount -t proc"},
		"/bin/ss":                  {[]string{"--version"}, "iproute2"},
		"/bin/cat":                 {[]string{"/etc/nsswitch.conf"}, "hosts: files dns"},
		"/bin/sleep":               {[]string{"0"}, ""},
		"/bin/grep":                {[]string{"root", "/etc/passwd"}, "root:x:0"},
		"/bin/whoami":              {nil, "root"},
		"/usr/bin/apt":             {[]string{"update"}, "no network here; already in this image: bash"},
		"/usr/bin/apt-get":         {[]string{"install", "-y", "iptables"}, "already in this image: iptables ("},
		"/usr/local/sbin/iptables": {[]string{"-t", "nat", "-S", "PREROUTING"}, "-P PREROUTING ACCEPT"},
		"/usr/sbin/nft":            {[]string{"--version"}, "nftables"},
		"/usr/sbin/ipvsadm":        {[]string{"--version"}, "ipvs"},
		"/bin/netstat":             {[]string{"-ntlp"}, "PID/Program name"},
		// The busybox image has its own nslookup.
		"/usr/local/bin/nslookup": {[]string{"localhost", "127.0.0.1"}, "can't connect to remote host"},
		"/usr/local/bin/wget":     {[]string{"-qO", "-", "website.foo"}, "wget: bad address 'website.foo'"},
	} {
		got, err := inside(root, name, c.args...).CombinedOutput()
		if !strings.Contains(string(got), c.want) {
			t.Errorf("%s %v says %q (%v), want %q", name, c.args, got, err, c.want)
		}
	}
}

// runApt checks the exit statuses that scripts depend on.
func runApt(t *testing.T, root string) {
	for args, want := range map[string]int{
		"update": 0, "install -y tcpdump iptables": 0, "install -y dnsutils": 0, "install": 0, "install curl jq": 100, "remove curl": 100, "": 100,
	} {
		cmd := inside(root, "/usr/bin/apt", strings.Fields(args)...)
		if out, _ := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != want {
			t.Errorf("apt %s: exit status %d, want %d: %s", args, cmd.ProcessState.ExitCode(), want, out)
		}
	}
}

func TestCutDataRefusesWhatItDoesNotKnow(t *testing.T) {
	if _, err := cutData([]byte("no library")); err == nil {
		t.Error("text was taken for a library")
	}
	shell, err := os.ReadFile("/bin/dash") // its largest segment is code
	must(t, err)
	if _, err := cutData(shell); err == nil {
		t.Error("the code of a program was cut away")
	}
}

// inside returns a command in a chroot and in a new network namespace with only a loopback interface.
func inside(root, name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.Err = nil // the path is valid inside the chroot
	cmd.Path, cmd.Dir, cmd.Env = name, "/", []string{paths}
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	return cmd
}

// unpack makes a root directory from the first image of an archive.
func unpack(t *testing.T, archive string) string {
	t.Helper()
	f, err := os.Open(archive)
	must(t, err)
	defer f.Close()
	files := make(map[string][]byte)
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		must(t, err)
		files[h.Name], err = io.ReadAll(r)
		must(t, err)
	}
	var images []struct{ Layers []string }
	must(t, json.Unmarshal(files["manifest.json"], &images))
	root := t.TempDir()
	for _, layer := range images[0].Layers {
		cmd := exec.Command("tar", "-x", "-C", root)
		cmd.Stdin = bytes.NewReader(files[layer])
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("unpack %s: %v: %s", archive, err, out)
		}
	}
	must(t, os.Mkdir(filepath.Join(root, "dev"), 0o755))
	must(t, os.WriteFile(filepath.Join(root, "dev/null"), nil, 0o666)) // a container has this device
	return root
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
