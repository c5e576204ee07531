package bgp

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// An frr is FRRouting as the rack's router: zebra, bgpd and bfdd in the fabric's namespace. Its programs come from
// Debian's package, which is unpacked and not installed (make bin/frr).
type frr struct {
	r    *rack
	root string // where the package is unpacked
	dir  string // its sockets and files
	log  *testnet.Log
	cmds []*exec.Cmd
}

// frrRoot is the directory into which make bin/frr unpacks FRR.
const frrRoot = "../../../bin/frr"

// needFRR skips the test if FRR does not run here.
func needFRR(t *testing.T) {
	t.Helper()
	cmd := exec.Command(filepath.Join(frrRoot, "usr/lib/frr/bgpd"), "--version")
	cmd.Env = frrEnv()
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Skipf("no FRR (make bin/frr, which make test does): %v %s", err, out)
	}
}

// frrRoom gives a daemon directories and a group of its own. Debian's FRR wants the group frrvty, and writes below
// /run and /var/tmp whatever its options say.
const frrRoom = `set -e
mount -t tmpfs none /run; mount -t tmpfs none /var/tmp
mount --bind "$1/group" /etc/group
shift; exec "$@"`

// frrConfig is the router's configuration. The fabric's kernel gets the nodes' routes, over several nodes if several
// announce. NODES stands for the nodes, PEER for further lines about them.
const frrConfig = `log stdout
router bgp 64500
 bgp router-id 172.18.0.1
 no bgp ebgp-requires-policy
 neighbor nodes peer-group
 neighbor nodes remote-as 64501
 neighbor nodes timers 3 9
 neighbor nodes passive
PEER
NODES
 address-family ipv4 unicast
  maximum-paths 16
 exit-address-family
 address-family ipv6 unicast
  neighbor nodes activate
  maximum-paths 16
 exit-address-family
`

// noNexthops makes zebra work without nexthop objects. After a kill, a new zebra gives new objects the numbers of
// objects that are still in the kernel. It loses routes to them, and leaves the old objects for ever.
const noNexthops = "no zebra nexthop kernel enable\n"

// newFRR starts FRR with further lines about the nodes, and for zebra.
func newFRR(r *rack, peer string, zebra ...string) *frr {
	r.t.Helper()
	root, err := filepath.Abs(frrRoot)
	must(r.t, err)
	dir, err := os.MkdirTemp("", "frr") // a socket's path must be short
	must(r.t, err)
	r.t.Cleanup(func() { _ = os.RemoveAll(dir) })
	f := &frr{r: r, root: root, dir: dir, log: &testnet.Log{}}
	groups, err := os.ReadFile("/etc/group")
	must(r.t, err)
	var nodes strings.Builder
	for _, m := range r.nodes {
		fmt.Fprintf(&nodes, " neighbor %v peer-group nodes\n", m.Addr(true))
	}
	text := strings.NewReplacer("PEER\n", peer, "NODES\n", nodes.String()).Replace(frrConfig)
	for name, text := range map[string]string{
		"group": string(groups) + "frrvty:x:64999:root\n", "zebra.conf": "log stdout\n" + strings.Join(zebra, ""), "bfdd.conf": "log stdout\n", "bgpd.conf": text,
	} {
		must(r.t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	r.t.Cleanup(func() {
		f.kill()
		if r.t.Failed() {
			r.t.Logf("FRR:\n%s", f.log)
		}
	})
	f.start()
	return f
}

// start starts the daemons.
func (f *frr) start() {
	f.r.t.Helper()
	f.daemon("zebra", "-z", f.dir+"/zserv.api")
	await(f.r.t, f.asking("zebra", "show version"), "FRRouting")
	f.daemon("bfdd", "-z", f.dir+"/zserv.api", "--bfdctl", f.dir+"/bfdd.sock")
	f.daemon("bgpd", "-z", f.dir+"/zserv.api")
	await(f.r.t, f.asking("bgpd", "show bgp summary"), "IPv4 Unicast Summary")
}

func (f *frr) daemon(name string, args ...string) {
	f.r.t.Helper()
	all := append([]string{"-m", "--propagation", "private", "sh", "-c", frrRoom, "sh", f.dir, filepath.Join(f.root, "usr/lib/frr", name),
		"-f", filepath.Join(f.dir, name+".conf"), "-i", filepath.Join(f.dir, name+".pid"), "--vty_socket", f.dir, "-P", "0", "-u", "root", "-g", "root"}, args...)
	cmd := exec.Command("unshare", all...)
	cmd.Env = frrEnv()
	cmd.Stdout, cmd.Stderr = f.log, f.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must(f.r.t, f.r.net.Fabric.Do(cmd.Start))
	f.cmds = append(f.cmds, cmd)
}

// frrEnv lets FRR's programs find the libraries next to them.
func frrEnv() []string {
	var dirs []string
	for _, pattern := range []string{"usr/lib/*-linux-gnu/frr", "usr/lib/*-linux-gnu", "lib/*-linux-gnu"} {
		found, _ := filepath.Glob(filepath.Join(frrRoot, pattern))
		for _, dir := range found {
			if dir, err := filepath.Abs(dir); err == nil {
				dirs = append(dirs, dir)
			}
		}
	}
	return append(os.Environ(), "LD_LIBRARY_PATH="+strings.Join(dirs, ":"))
}

// kill kills the daemons.
func (f *frr) kill() {
	for _, cmd := range f.cmds {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	f.cmds = nil
}

// asking runs a command in a daemon's shell as vtysh does. The request is a string that ends in 0; the answer ends
// with three times 0 and a status.
func (f *frr) asking(daemon, command string) func() string {
	return func() string {
		c, err := net.Dial("unix", filepath.Join(f.dir, daemon+".vty"))
		if err != nil {
			return err.Error() // it may be starting
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		var out []byte
		for _, line := range []string{"enable", command} {
			_, _ = c.Write(append([]byte(line), 0))
			out = nil
			for b := make([]byte, 4096); len(out) < 4 || string(out[len(out)-4:len(out)-1]) != "\x00\x00\x00"; {
				n, err := c.Read(b)
				if err != nil {
					return err.Error()
				}
				out = append(out, b[:n]...)
			}
		}
		return string(out[:len(out)-4])
	}
}
