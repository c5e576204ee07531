// Package nameserver starts Debian's bind9 and Knot in a test's network namespace: as the primary of a zone that takes
// dynamic updates, or as a secondary.
//
//	make bin/nameservers ──unpacks──> bin/nameservers ──Start──> named or knotd at 127.0.0.1:53 of the namespace
//
// The programs have their own files in a directory of the test, and end with the test.
package nameserver

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// The key that every server knows.
const (
	KeyName   = "fairway"
	Algorithm = "hmac-sha256"
	Secret    = "dGhpcyBpcyBhIHNlY3JldCBvZiBhIHRlc3QgYW5kIG5vbmU="
)

// Kinds are the servers that there are.
var Kinds = []string{"bind9", "knot"}

// A Config describes a server.
type Config struct {
	Kind    string   // one of Kinds
	Zones   []string // whose primary it is
	Records string   // of the first zone, in the format of zone files, besides SOA and NS
	// Primary makes the server a secondary of Zones. It is the address of the primary, as 127.0.0.1:8053.
	Primary string
	Listen  string // the address, port 53; empty: 127.0.0.1
	// Open lets everybody transfer and update the zones.
	Open bool
}

// A Server is a running server.
type Server struct {
	Addr string // host:port
	Log  testnet.Log
}

// Start starts a server in a namespace. It skips the test if the programs are not there.
func Start(t *testing.T, n *testnet.Namespace, cfg Config) *Server {
	t.Helper()
	root := unpacked(t)
	if cfg.Listen == "" {
		cfg.Listen = "127.0.0.1"
	}
	dir, err := os.MkdirTemp("", "nameserver")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	zoneFiles(t, dir, cfg)
	text, args, ready := bind(dir, cfg), []string{"usr/sbin/named", "-g", "-c"}, "all zones loaded"
	if cfg.Kind == "knot" {
		text, args, ready = knot(dir, cfg), []string{"usr/sbin/knotd", "-c"}, "server started"
	}
	conf := filepath.Join(dir, "conf")
	write(t, conf, text)
	s := &Server{Addr: cfg.Listen + ":53"}
	cmd := exec.CommandContext(t.Context(), filepath.Join(root, args[0]), append(args[1:], conf)...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &s.Log, &s.Log
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+libraries(root))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started, ended := make(chan error), make(chan struct{})
	go func() { // the thread that starts a program must live as long: Pdeathsig
		defer close(ended)
		err := n.Do(func() error { return cmd.Start() })
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		t.Fatalf("start %s: %v", cfg.Kind, err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
		if t.Failed() {
			all := s.Log.String()
			t.Logf("%s:\n…%s", cfg.Kind, all[max(0, len(all)-4000):])
		}
	})
	if err := s.Log.Await(ready, 30*time.Second); err != nil {
		t.Fatalf("%s: %v\n%s", cfg.Kind, err, s.Log.String())
	}
	return s
}

// Need skips the test if the programs are not there.
func Need(t *testing.T) { unpacked(t) }

// unpacked returns the directory with the programs.
func unpacked(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for ; dir != "/"; dir = filepath.Dir(dir) {
		root := filepath.Join(dir, "bin/nameservers")
		if _, err := os.Stat(root); err == nil {
			return root
		}
	}
	t.Skip("no bind9 and no Knot (make bin/nameservers, which make test does)")
	return ""
}

// libraries returns the directories of libraries next to the programs.
func libraries(root string) string {
	var dirs []string
	for _, pattern := range []string{"usr/lib/*-linux-gnu", "lib/*-linux-gnu"} {
		found, _ := filepath.Glob(filepath.Join(root, pattern))
		dirs = append(dirs, found...)
	}
	return strings.Join(dirs, ":")
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func zoneFiles(t *testing.T, dir string, cfg Config) {
	t.Helper()
	if cfg.Primary != "" {
		return
	}
	for i, zone := range cfg.Zones {
		text := "$TTL 300\n@ SOA ns1 hostmaster 1 7200 1800 86400 60\n@ NS ns1\nns1 A 192.0.2.53\n"
		if i == 0 {
			text += cfg.Records
		}
		write(t, filepath.Join(dir, zone+".zone"), text)
	}
}

// bind returns the configuration of bind9.
func bind(dir string, cfg Config) string {
	var b strings.Builder
	fmt.Fprintf(&b, `options { directory "%s"; pid-file none; session-keyfile none; lock-file none; listen-on { %s; }; listen-on-v6 { none; };
  recursion no; notify no; dnssec-validation no; allow-transfer { none; }; };
controls { };
key "%s" { algorithm %s; secret "%s"; };
`, dir, cfg.Listen, KeyName, Algorithm, Secret)
	for _, zone := range cfg.Zones {
		host, port, _ := strings.Cut(cfg.Primary, ":")
		switch {
		case cfg.Primary != "":
			fmt.Fprintf(&b, "zone %q { type secondary; file \"%s.zone\"; primaries { %s port %s; }; transfer-source %s; allow-notify { 127.0.0.0/8; }; };\n", zone, zone, host, port, cfg.Listen)
		case cfg.Open:
			fmt.Fprintf(&b, "zone %q { type primary; file \"%s.zone\"; allow-update { any; }; allow-transfer { any; }; };\n", zone, zone)
		default:
			fmt.Fprintf(&b, "zone %q { type primary; file \"%s.zone\"; update-policy { grant %s zonesub ANY; }; allow-transfer { key %s; }; };\n", zone, zone, KeyName, KeyName)
		}
	}
	return b.String()
}

// knot returns the configuration of Knot.
func knot(dir string, cfg Config) string {
	var b strings.Builder
	fmt.Fprintf(&b, `server:
  rundir: %[1]s
  listen: %[2]s@53
log:
  - target: stderr
    any: info
database:
  storage: %[1]s
key:
  - id: %[3]s
    algorithm: %[4]s
    secret: %[5]s
`, dir, cfg.Listen, KeyName, Algorithm, Secret)
	key := "\n    key: " + KeyName
	if cfg.Open {
		key = ""
	}
	host, port, _ := strings.Cut(cfg.Primary, ":")
	if cfg.Primary != "" {
		fmt.Fprintf(&b, "remote:\n  - id: primary\n    address: %s@%s\n    via: %s\nacl:\n  - id: all\n    address: 127.0.0.0/8\n    action: notify\n", host, port, cfg.Listen)
	} else {
		fmt.Fprintf(&b, "acl:\n  - id: all%s\n    action: [update, transfer]\n", key)
	}
	b.WriteString("zone:\n")
	for _, zone := range cfg.Zones {
		fmt.Fprintf(&b, "  - domain: %s\n    storage: %s\n    file: %s.zone\n    acl: all\n", zone, dir, zone)
		if cfg.Primary != "" {
			b.WriteString("    master: primary\n")
		}
	}
	return b.String()
}
