package nft

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestRefused: if nft is killed, hangs, is refused or is missing, the kernel stays as it was. The next run of nft loads
// the ruleset, and no element is lost.
func TestRefused(t *testing.T) {
	for name, script := range map[string]string{
		"killed":      "kill -9 $$",
		"out of time": "exec sleep 600",
		"ENOMEM":      "cat >/dev/null; echo 'netlink: Error: cannot allocate memory' >&2; exit 1",
		"EPERM":       "cat >/dev/null; echo 'Operation not permitted (you must be root)' >&2; exit 1",
		"EEXIST":      "cat >/dev/null; echo 'Error: Could not process rule: File exists' >&2; exit 1",
		"ENOBUFS":     "echo 'netlink: Error: No buffer space available' >&2; exit 1",
		"garbage":     "cat >/dev/null; head -c 100000 /dev/urandom; head -c 100000 /dev/urandom >&2; exit 3",
		"no change":   "cat >/dev/null",
		"absent":      "",
	} {
		t.Run(name, func(t *testing.T) {
			table, p := open(t)
			must(t, table.Commit(t.Context(), nil, []Write{number(1)}))
			before := list(t, "table inet tested")
			path := os.Getenv("PATH")
			nft, err := exec.LookPath("nft")
			must(t, err)
			dir := t.TempDir()
			if script != "" {
				must(t, os.WriteFile(filepath.Join(dir, "nft"), []byte("#!/bin/sh\n"+script+"\n"), 0o755))
				t.Setenv("PATH", dir+":"+path)
			} else {
				t.Setenv("PATH", dir)
			}
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			if name == "out of time" {
				defer time.AfterFunc(100*time.Millisecond, func() { cancel(context.DeadlineExceeded) }).Stop()
			}
			next := &Ruleset{Source: strings.ReplaceAll(second, "@nets accept", "@nets drop"), DynamicChain: keep}
			if did, err := table.Declare(ctx, next); err == nil {
				// The sets exist already, so only the next step notices that nft does nothing.
				if name != "no change" {
					t.Errorf("declared: %v", did)
				}
			}
			if did, err := table.Load(ctx, next, true); err == nil {
				t.Errorf("loaded: %v", did)
			} else if name == "out of time" && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("error %v, want the context's", err)
			}
			t.Setenv("PATH", filepath.Dir(nft)+":"+path)
			if after := list(t, "table inet tested"); after != before {
				t.Errorf("before\n%s\nafter\n%s", before, after)
			}
			did, err := table.Load(t.Context(), next, true)
			if got, e := table.numbers(t.Context()); err != nil || e != nil || did != InPlace || len(got) != 1 {
				t.Errorf("the next load: %v, error %v; elements %v, error %v", did, err, got, e)
			}
			_, err = table.Load(t.Context(), p, true)
			must(t, err)
		})
	}
}

// TestNoDescriptors: without a free file descriptor nft cannot start, and the kernel stays as it was.
func TestNoDescriptors(t *testing.T) {
	table, p := open(t)
	must(t, table.Commit(t.Context(), nil, []Write{number(1)}))
	before := list(t, "table inet tested")
	var was unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &was))
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: was.Max}))
	p.Data["Number"] = "0:2"
	did, err := table.Load(t.Context(), p, true)
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &was))
	if !errors.Is(err, syscall.EMFILE) {
		t.Errorf("loaded %v, error %v, want %v", did, err, syscall.EMFILE)
	}
	if after := list(t, "table inet tested"); after != before {
		t.Errorf("before\n%s\nafter\n%s", before, after)
	}
	if did, err = table.Load(t.Context(), p, true); err != nil || did != InPlace {
		t.Errorf("the next load: %v, error %v", did, err)
	}
}

// TestMovedChain: a base chain with another priority, hook or type is replaced in place, and elements stay.
func TestMovedChain(t *testing.T) {
	table, p := open(t)
	must(t, table.Commit(t.Context(), nil, []Write{number(1)}))
	for _, place := range []string{"filter hook input priority 5", "filter hook output priority -100", "nat hook prerouting priority dstnat - 1", "nat hook output priority -101", "filter hook input priority 0"} {
		next := &Ruleset{Source: strings.Replace(second, "filter hook input priority 0", place, 1), DynamicChain: keep}
		for range 2 {
			did, err := table.Load(t.Context(), next, true)
			must(t, err)
			if got, err := table.numbers(t.Context()); err != nil || did != InPlace || len(got) != 1 {
				t.Errorf("%s: loaded %v; elements %v, error %v", place, did, got, err)
			}
		}
		kind, hook, _ := strings.Cut(place, " hook ")
		hook, _, _ = strings.Cut(hook, " ")
		if out := list(t, "chain inet tested input"); !strings.Contains(out, "type "+kind+" hook "+hook) {
			t.Errorf("%s:\n%s", place, out)
		}
	}
	next := &Ruleset{Source: strings.Replace(second, "\t\ttype filter hook input priority 0; policy accept;\n", "", 1), DynamicChain: keep}
	did, err := table.Load(t.Context(), next, false)
	if out := list(t, "chain inet tested input"); err != nil || did != InPlace || strings.Contains(out, "hook") {
		t.Errorf("no hook: loaded %v, error %v\n%s", did, err, out)
	}
	// If a chain becomes a base chain, the table is recreated: verdicts of maps may lead to the chain.
	if did, err := table.Load(t.Context(), p, false); err != nil || did != Recreated {
		t.Errorf("a hook again: loaded %v, error %v", did, err)
	}
}

// blocks returns a ruleset that drops packets to the addresses in its set. set has the type of the set.
func blocks(set string) *Ruleset {
	return &Ruleset{Source: fmt.Sprintf(`
add table inet {{.Table}}
table inet {{.Table}} {
	chain {{.Marker}} {
	}
	set blocked {
		%s
	}
	chain output {
		type filter hook output priority 0; policy accept;
		meta l4proto udp %s @blocked drop
	}
}
`, set, map[bool]string{true: "ip daddr . udp dport", false: "ip daddr"}[strings.Contains(set, " . ")])}
}

// TestRecreate: a set of the same name has another type. The old rules serve until the new rules are loaded with all
// elements, also if the process ends in between.
func TestRecreate(t *testing.T) {
	table, _ := open(t)
	must(t, table.Delete(t.Context()))
	must(t, exec.Command("ip", "link", "set", "lo", "up").Run())
	blocked := func(when string, want bool) {
		t.Helper()
		c, err := net.Dial("udp", "127.0.0.1:9")
		must(t, err)
		defer c.Close()
		if _, err = c.Write([]byte("x")); want != errors.Is(err, unix.EPERM) {
			t.Errorf("%s: a packet was sent with error %v, want blocked %v", when, err, want)
		}
	}
	key, port := []byte{127, 0, 0, 1}, []byte{0, 9, 0, 0}
	_, err := table.Load(t.Context(), blocks("type ipv4_addr"), false)
	must(t, err)
	must(t, table.Commit(t.Context(), nil, []Write{{Set: "blocked", Key: key, Add: true}}))
	blocked("at first", true)
	next := blocks("type ipv4_addr . inet_service")
	for _, cut := range []bool{false, true} { // true: a new process continues
		if cut {
			table.Close()
			table = New("tested")
			defer table.Close()
		}
		did, err := table.Declare(t.Context(), next)
		if want := map[bool]Loaded{false: Recreated, true: InPlace}[cut]; err != nil || did != want {
			t.Errorf("declared %v, error %v, want %v", did, err, want)
		}
		blocked("declared", true)
		if out := list(t, "chain inet tested-former output"); !strings.Contains(out, "priority filter + 1;") {
			t.Errorf("the copy is not behind what it replaces:\n%s", out)
		}
	}
	must(t, table.Commit(t.Context(), nil, []Write{{Set: "blocked", Key: append(key, port...), Add: true}}))
	blocked("filled", true)
	did, err := table.Load(t.Context(), next, false)
	if err != nil || did != InPlace {
		t.Errorf("loaded %v, error %v", did, err)
	}
	blocked("loaded", true)
	if out := list(t, "tables"); out != "table inet tested\n" {
		t.Errorf("tables:\n%s", out)
	}
	// Without a Declare, Load recreates the table at once.
	if did, err := table.Load(t.Context(), blocks("type ipv4_addr; flags interval"), false); err != nil || did != Recreated {
		t.Errorf("another shape: loaded %v, error %v", did, err)
	}
	blocked("emptied", false)
	if did, err := table.Declare(t.Context(), blocks("type ipv4_addr")); err != nil || did != Recreated {
		t.Errorf("another shape: declared %v, error %v", did, err)
	}
	must(t, table.Delete(t.Context()))
	if out := list(t, "tables"); out != "" {
		t.Errorf("after a delete there are\n%s", out)
	}
}

// TestShapes: after a load the kernel has the shapes that the ruleset declares.
func TestShapes(t *testing.T) {
	table, p := open(t)
	same := func(p *Ruleset) {
		t.Helper()
		text, _, err := p.render("tested")
		must(t, err)
		chains, err := table.list(t.Context())
		must(t, err)
		if d, err := table.compare(t.Context(), text, chains); err != nil || d.conflict != "" || d.moved != nil {
			t.Errorf("%+v, error %v", d, err)
		}
	}
	same(p)
	var sets strings.Builder
	for i, set := range []string{
		"set\ttype ipv4_addr . inet_proto . inet_service . ipv4_addr\n\t\tflags interval", "set\ttype inet_proto",
		"map\ttypeof ip6 daddr . meta l4proto . th dport . numgen random mod 65536 : ip daddr . th dport",
		"map\ttype mark . mark . ipv4_addr : ipv4_addr . inet_service . mark\n\t\tsize 100\n\t\tflags dynamic,timeout\n\t\ttimeout 10m",
		"set\ttype nf_proto . inet_proto . inet_service\n\t\tcounter", "map\ttype mark : verdict", "set\ttype ifname\n\t\tflags interval",
		"set\ttype ipv6_addr\n\t\ttimeout 1h", "map\ttype classid : verdict\n\t\tflags interval",
	} {
		kind, text, _ := strings.Cut(set, "\t")
		fmt.Fprintf(&sets, "\t%s s%d {\n\t\t%s\n\t}\n", kind, i, text)
	}
	all := &Ruleset{Source: strings.Replace(second, "\tchain input", sets.String()+"\tchain input", 1), DynamicChain: keep}
	_, err := table.Load(t.Context(), all, false)
	must(t, err)
	same(all)
	for _, wrong := range []string{"type no_type", "type ipv4_addr : mark . no_type"} {
		p := &Ruleset{Source: strings.Replace(second, "type ipv4_addr : classid", wrong, 1)}
		if did, err := table.Load(t.Context(), p, false); err == nil {
			t.Errorf("%s was loaded: %v", wrong, did)
		}
	}
}
