package nftset

import (
	"context"
	"errors"
	"net/netip"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

func TestMain(m *testing.M) { testnet.Main(m) }

// source is a ruleset with a set of each kind. Its rules depend on a version.
const source = `
add table inet {{.Table}}
table inet {{.Table}} {
	chain {{.Marker}} {
	}
	map frontends4 {
		type ipv4_addr . inet_proto . inet_service : classid
	}
	set cluster-ips4 {
		type ipv4_addr
	}
	set pods4 {
		type ipv4_addr
		flags interval
	}
	set source-ranges4 {
		type ipv4_addr . inet_proto . inet_service . ipv4_addr
		flags interval
	}
	map clients4 {
		type ipv4_addr : classid
		flags dynamic,timeout
	}
	chain input {
		type filter hook input priority 0; policy accept;
		ip daddr @cluster-ips4 meta mark set {{.Version}}
	}
}
`

// reads is a State: how many times the kernel was read.
type reads int

func (reads) Explain(service.Key) ([]datapath.Object, error) { return nil, nil }

// A rig is the Syncer of a process.
type rig struct {
	*Syncer[reads]
	t     *testing.T
	p     *nft.Ruleset
	reads reads
}

// enter moves the test's thread to a new network namespace, which ends with the thread.
func enter(t *testing.T) {
	t.Helper()
	testnet.NeedRoot(t, "makes network namespaces")
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatalf("make a network namespace: %v [run the tests as root]", err)
	}
}

func process(t *testing.T, version int) *rig {
	r := &rig{t: t, p: &nft.Ruleset{Source: source, Data: map[string]any{"Version": version}}}
	r.Syncer = NewSyncer("tested", nft.New("tested"), func(ctx context.Context) (reads, error) {
		r.reads++
		rd := r.Reader(ctx)
		rd.Frontends(Frontends, true, false, func(service.Key, nft.Element) error { return nil })
		rd.Addrs(ClusterIPs, true, func(netip.Addr) {})
		rd.Sources(true, func(service.Key) *Sources { return &Sources{} })
		rd.Prefixes(Pods, true)
		return r.reads, rd.Err()
	})
	t.Cleanup(r.Forget)
	return r
}

// begin begins a Sync that reads the kernel, and writes an address.
func (r *rig) begin(addr string) (state reads, fresh bool) {
	r.t.Helper()
	state, fresh, err := r.Begin(r.t.Context(), r.p)
	must(r.t, err)
	if addr != "" {
		must(r.t, r.Commit(r.t.Context(), nil, []nft.Write{{Set: "cluster-ips4", Key: netip.MustParseAddr(addr).AsSlice(), Add: true}}))
	}
	return state, fresh
}

// sync runs a whole Sync that reads the kernel and writes an address.
func (r *rig) sync(addr string) (fresh bool) {
	r.t.Helper()
	_, fresh = r.begin(addr)
	must(r.t, r.Switch(r.t.Context(), r.p))
	must(r.t, r.End(r.t.Context(), r.p, Chains{}))
	return fresh
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func run(t *testing.T, command string) string {
	t.Helper()
	out, err := exec.Command("nft", "-a", command).CombinedOutput()
	if err != nil {
		t.Fatalf("nft %s: %v: %s", command, err, out)
	}
	return string(out)
}

// TestRestart: a process that finds its ruleset unchanged loads nothing. It does not read the state of Adopt again,
// unless another program has changed something in between.
func TestRestart(t *testing.T) {
	enter(t)
	if fresh := process(t, 1).sync("10.96.0.1"); !fresh {
		t.Error("the first Sync loaded nothing")
	}
	before := run(t, "list table inet tested")
	for _, change := range []bool{false, true} {
		r := process(t, 1)
		held, err := r.Adopt(t.Context(), true, func(reads) (*service.Table, error) { return &service.Table{}, nil })
		if err != nil || !held.Found {
			t.Fatalf("adopted: %v, error %v", held.Found, err)
		}
		if change {
			run(t, "add table inet other")
		}
		state, fresh := r.begin("")
		if want := map[bool]reads{false: 1, true: 2}[change]; fresh || state != want || r.reads != want {
			t.Errorf("changed in between: %v; loaded %v, state %d of %d reads", change, fresh, state, r.reads)
		}
		must(t, r.End(t.Context(), r.p, Chains{}))
		if drift, err := r.Check(t.Context(), Checks{Synced: true}); err != nil || drift.Any() {
			t.Errorf("drift %+v, error %v", drift, err)
		}
	}
	if after := run(t, "list table inet tested"); after != before {
		t.Errorf("a restart changed\n%s\nto\n%s", before, after)
	}
}

// TestUnfinished: a process ends after each step of a switch to another version. The next process finishes the switch,
// and nothing of the older version is left.
func TestUnfinished(t *testing.T) {
	enter(t)
	for steps := range 5 {
		process(t, 1).sync("10.96.0.1")
		// A set of another type makes the older rules serve from a copy of their table.
		run(t, "delete map inet tested frontends4; add map inet tested frontends4 { type ipv4_addr : classid; }; add set inet tested former { type ipv4_addr; }")
		r := process(t, 2)
		for i, step := range []func(){
			func() { r.begin("") },
			func() { r.commit("10.96.0.2") },
			func() { must(t, r.Switch(t.Context(), r.p)) },
			func() { r.commit("10.96.0.3") },
		} {
			if i < steps {
				step()
			}
		}
		r.Forget()
		process(t, 2).sync("")
		if fresh := process(t, 2).sync(""); fresh {
			t.Errorf("after %d steps and a whole Sync the program was loaded again", steps)
		}
		out := run(t, "list ruleset")
		if strings.Contains(out, "former") || strings.Count(out, "table ") != 1 || !strings.Contains(out, "mark set 0x00000002") {
			t.Errorf("after %d steps and a whole Sync there is\n%s", steps, out)
		}
		run(t, "delete table inet tested")
	}
}

func (r *rig) commit(addr string) {
	r.t.Helper()
	must(r.t, r.Commit(r.t.Context(), nil, []nft.Write{{Set: "cluster-ips4", Key: netip.MustParseAddr(addr).AsSlice(), Add: true}}))
}

// TestCounted: a Sync that reads the kernel fails if a set has another number of elements than were written. The next
// Sync succeeds.
func TestCounted(t *testing.T) {
	enter(t)
	frontend := FrontendKey(service.Key{Addr: netip.MustParseAddrPort("10.96.0.1:80"), Proto: api.TCP})
	for i, change := range []string{
		"flush map inet tested frontends4", "delete element inet tested cluster-ips4 { 10.96.0.1 }", "flush set inet tested pods4",
		"add element inet tested pods4 { 192.0.2.0/24 }", "flush set inet tested source-ranges4", "add element inet tested cluster-ips4 { 10.96.0.9 }",
	} {
		r := process(t, i)
		r.begin("10.96.0.1")
		ranges := SourcesOf(&service.Frontend{Addr: netip.MustParseAddrPort("10.96.0.1:80"), Sources: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}})
		ws := append(nft.ReplacePrefixes("pods4", true, nil, []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("10.246.0.0/16")}),
			nft.Write{Set: "frontends4", Key: frontend, Data: Number(1), Add: true})
		for _, w := range ChangeSources(service.Key{Addr: netip.MustParseAddrPort("10.96.0.1:80"), Proto: api.TCP}, Sources{}, ranges).Before {
			if w.Set == "source-ranges4" {
				ws = append(ws, w)
			}
		}
		must(t, r.Commit(t.Context(), nil, ws))
		must(t, r.Switch(t.Context(), r.p))
		run(t, change)
		if err := r.End(t.Context(), r.p, Chains{}); err == nil || !strings.Contains(err.Error(), "written") {
			t.Errorf("nft %s: error %v", change, err)
		}
		r.Forget()
		r.sync("")
		must(t, r.Table.Delete(t.Context()))
	}
}

// TestRecreated: a Switch that recreates the table, after the sets were filled, fails. The next Sync fills them again.
func TestRecreated(t *testing.T) {
	enter(t)
	r := process(t, 1)
	r.begin("10.96.0.1")
	run(t, "delete table inet tested; add table inet tested; add set inet tested cluster-ips4 { type ipv6_addr; }")
	if err := r.Switch(t.Context(), r.p); !errors.Is(err, nft.ErrRecreated) {
		t.Errorf("Switch: %v, want %v", err, nft.ErrRecreated)
	}
	r.Forget()
	r.sync("10.96.0.1")
	if out := run(t, "list set inet tested cluster-ips4"); !strings.Contains(out, "10.96.0.1") {
		t.Errorf("the next Sync leaves\n%s", out)
	}
}

// TestDescribedErrors: an error of Begin or Switch says which rules the kernel runs.
func TestDescribedErrors(t *testing.T) {
	enter(t)
	refused := errors.New("refused")
	fails := func(r *rig, want string) {
		t.Helper()
		r.Table.FailWrites(func() error { return refused })
		_, _, err := r.Begin(t.Context(), r.p)
		if err == nil {
			err = r.Switch(t.Context(), r.p)
		}
		if !errors.Is(err, refused) || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
		r.Table.FailWrites(nil)
		r.Forget()
	}
	r := process(t, 1)
	fails(r, "runs no rules of ours")
	r.sync("10.96.0.1")
	next := process(t, 2)
	fails(next, "runs the rules from before")
	run(t, "flush chain inet tested input")
	fails(r, "runs the new rules")
}
