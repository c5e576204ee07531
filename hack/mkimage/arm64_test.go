package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/vishvananda/netlink"

	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// arm64 is the image for arm64, unpacked, with an emulator of that processor for single programs.
type arm64 struct{ root string }

func openArm64(t *testing.T) arm64 {
	t.Helper()
	testnet.NeedRoot(t, "runs a program in another root directory")
	archive, emulator := os.Getenv("FAIRWAY_ARM64_IMAGE"), os.Getenv("FAIRWAY_QEMU")
	if archive == "" || emulator == "" {
		t.Skip("needs the image for arm64 and qemu: `make test-arm64` has both")
	}
	a := arm64{root: t.TempDir()}
	unpack(t, archive, a.root)
	data, err := os.ReadFile(emulator)
	if err == nil {
		err = os.WriteFile(filepath.Join(a.root, "qemu"), data, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// command returns a program of the image.
func (a arm64) command(t *testing.T, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(t.Context(), "/qemu", args...)
	cmd.Dir, cmd.Env = "/", []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "CNI_COMMAND=VERSION"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: a.root, Pdeathsig: syscall.SIGKILL}
	return cmd
}

// TestArm64Programs starts the image's programs on an emulated processor: the kernel is this machine's, and the emulator
// passes no rules to it. Each extension of iptables is found and loads.
func TestArm64Programs(t *testing.T) {
	a := openArm64(t)
	for _, c := range []struct{ args, want string }{
		{"/usr/bin/fairway version", "linux/arm64"},
		{"/usr/bin/fairway-cni", `"cniVersion"`},
		{"/usr/sbin/ip6tables-legacy --version", "(legacy)"},
	} {
		if out, err := a.command(t, strings.Fields(c.args)...).CombinedOutput(); err != nil || !strings.Contains(string(out), c.want) {
			t.Errorf("%s: %v: %s, want %s", c.args, err, out, c.want)
		}
	}
	// Before they look at a flag, these two open a netlink socket, which the emulator refuses.
	for _, program := range []string{"nft", "iptables-nft"} {
		out, err := a.command(t, "/usr/sbin/"+program, "--version").CombinedOutput()
		if err == nil || !strings.Contains(string(out), "nitialize") || !strings.Contains(string(out), "Protocol not supported") {
			t.Errorf("%s: %v: %s", program, err, out)
		}
	}
	extensions, err := filepath.Glob(a.root + "/usr/lib/aarch64-linux-gnu/xtables/libxt_*.so")
	if err != nil || len(extensions) < 50 {
		t.Fatalf("%d extensions of iptables, %v", len(extensions), err)
	}
	for _, name := range []string{"addrtype", "comment", "conntrack", "connmark", "mark", "multiport", "recent", "statistic"} {
		out, err := a.command(t, "/usr/sbin/iptables-legacy", "-m", name, "--help").CombinedOutput()
		if err != nil || !strings.Contains(string(out), " match options") {
			t.Errorf("extension %s: %v: %s", name, err, out)
		}
	}
}

// TestArm64DNS asks the emulated DNS server.
func TestArm64DNS(t *testing.T) {
	a := openArm64(t)
	testnet.Enter(t)
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		t.Fatal(err)
	}
	corefile := ". {\n hosts {\n  192.0.2.7 board.example\n }\n}\n"
	if err := os.WriteFile(a.root+"/tmp/Corefile", []byte(corefile), 0o644); err != nil {
		t.Fatal(err)
	}
	server := a.command(t, "/usr/bin/fairway", "dns", "--conf", "/tmp/Corefile")
	var log strings.Builder
	server.Stdout, server.Stderr = &log, &log
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	answer, err := ask("127.0.0.1:53", time.Minute)
	server.Process.Signal(syscall.SIGTERM)
	server.Wait()
	if err != nil || answer != "192.0.2.7" {
		t.Errorf("the answer is %q, %v\n%s", answer, err, log.String())
	}
}

// ask repeats a query until it is answered, because the server starts slowly.
func ask(at string, patience time.Duration) (answer string, err error) {
	query := new(dns.Msg).SetQuestion("board.example.", dns.TypeA)
	client := dns.Client{Timeout: time.Second}
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		var reply *dns.Msg
		if reply, _, err = client.Exchange(query, at); err != nil {
			continue
		}
		if len(reply.Answer) == 0 {
			return "", errors.New("empty answer")
		}
		a, ok := reply.Answer[0].(*dns.A)
		if !ok {
			return "", fmt.Errorf("answer %v", reply.Answer[0])
		}
		return a.A.String(), nil
	}
	return "", err
}
