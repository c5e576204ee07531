package nft

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// first is a ruleset with a set of each kind. second is the next version.
const first = `
add table inet {{.Table}}
table inet {{.Table}} {
	chain {{.Marker}} {
	}
	map numbers {
		type ipv4_addr : classid
	}
	map dispatch {
		type classid : verdict
	}
	set nets {
		type ipv4_addr
		flags interval
	}
	set links {
		type ifname
		flags interval
	}
	set old {
		type ipv4_addr
	}
	set short {
		type ipv4_addr
		flags timeout
	}
	set counted {
		type ipv4_addr
		counter
	}
	chain leaving {
		ip saddr @old drop
	}
	chain input {
		type filter hook input priority 0; policy accept;
		ip saddr @nets jump leaving
		meta priority {{.Number}} accept
	}
}
`

const second = `
add table inet {{.Table}}
table inet {{.Table}} {
	chain {{.Marker}} {
	}
	map numbers {
		type ipv4_addr : classid
	}
	map dispatch {
		type classid : verdict
	}
	set nets {
		type ipv4_addr
		flags interval
	}
	chain input {
		type filter hook input priority 0; policy accept;
		ip saddr @nets accept
	}
}
`

func keep(chain string) bool { return strings.HasPrefix(chain, "way-") }

// open moves the test's thread to a new network namespace, which ends with the thread. It returns a table in it, with
// the first ruleset loaded.
func open(t *testing.T) (*Table, *Ruleset) {
	t.Helper()
	testnet.NeedRoot(t, "makes network namespaces")
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatalf("make a network namespace: %v [run the tests as root]", err)
	}
	table, p := New("tested"), &Ruleset{Source: first, Data: map[string]any{"Number": "0:1"}, DynamicChain: keep}
	t.Cleanup(table.Close)
	if loaded, err := table.Load(t.Context(), p, false); err != nil || loaded != InPlace {
		t.Fatalf("first load: loaded %v, error %v", loaded, err)
	}
	return table, p
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func list(t *testing.T, what string) string {
	t.Helper()
	out, err := exec.Command("nft", strings.Fields("list "+what)...).CombinedOutput()
	if err != nil {
		t.Fatalf("nft list %s: %v: %s", what, err, out)
	}
	return string(out)
}

// number returns the Write of the i-th element in the map numbers.
func number(i int) Write {
	return Write{Set: "numbers", Key: []byte{10, byte(i >> 16), byte(i >> 8), byte(i)}, Data: []byte{byte(i), 0, 0, 0}, Comment: fmt.Sprint("c", i), Add: true}
}

func (t *Table) numbers(ctx context.Context) (map[string]string, error) {
	got := map[string]string{}
	return got, t.Elements(ctx, "numbers", func(e Element) error {
		got[fmt.Sprint(e.Key, e.Data)] = e.Comment
		return nil
	})
}

func TestElements(t *testing.T) {
	table, _ := open(t)
	// More elements than one transaction has, and many pages of a dump.
	var ws []Write
	want := map[string]string{}
	for i := range elementsPerCommit + elementsPerMessage + 7 {
		w := number(i)
		ws = append(ws, w)
		want[fmt.Sprint(w.Key, w.Data)] = w.Comment
	}
	must(t, table.Commit(t.Context(), nil, ws))
	got, err := table.numbers(t.Context())
	must(t, err)
	if !reflect.DeepEqual(got, want) {
		t.Errorf("wrote %d elements, read %d", len(want), len(got))
	}
	// One element gets other data, and one is deleted.
	other := number(5)
	other.Data, other.Del = []byte{9, 0, 0, 9}, true
	gone := number(6)
	gone.Add, gone.Del = false, true
	must(t, table.Commit(t.Context(), nil, []Write{other, gone}))
	got, err = table.numbers(t.Context())
	must(t, err)
	if got[fmt.Sprint(other.Key, other.Data)] != "c5" || len(got) != len(want)-1 {
		t.Errorf("after a change there are %d elements, want %d", len(got), len(want)-1)
	}
	// An element with a timeout, and one with a verdict.
	must(t, table.Commit(t.Context(), func(c *nftables.Conn) (bool, error) {
		c.AddChain(table.Chain("way-1"))
		return true, nil
	}, []Write{
		{Set: "short", Key: []byte{10, 0, 0, 1}, Timeout: time.Hour, Add: true},
		{Set: "dispatch", Key: []byte{1, 0, 0, 0}, Goto: "way-1", Add: true},
	}))
	if out := list(t, "table inet tested"); !strings.Contains(out, "10.0.0.1 timeout 1h") || !strings.Contains(out, "goto way-1") {
		t.Errorf("table is\n%.2000s", out)
	}
}

func TestIntervals(t *testing.T) {
	table, _ := open(t)
	prefixes := func(text ...string) (out []netip.Prefix) {
		for _, s := range text {
			out = append(out, netip.MustParsePrefix(s))
		}
		return out
	}
	was := prefixes()
	for _, is := range [][]netip.Prefix{
		prefixes("10.0.0.0/8"), prefixes("10.0.0.0/9", "10.128.0.0/16", "192.168.7.1/32"), prefixes("0.0.0.0/0"),
		prefixes("0.0.0.0/1", "255.255.255.255/32"), prefixes("10.0.0.0/16", "10.1.0.0/16", "10.1.2.0/24", "fd00::/8"), prefixes(),
	} {
		must(t, table.Commit(t.Context(), nil, ReplacePrefixes("nets", true, was, is)))
		got, err := table.Prefixes(t.Context(), "nets")
		must(t, err)
		if !slices.Equal(Ranges(got, true), Ranges(is, true)) {
			t.Errorf("wrote %v, read %v", is, got)
		}
		was = is
	}
	var links []string
	for _, is := range [][]string{{"eth0"}, {"cali*", "eth0", "veth*"}, {"interface-namex"}, nil} {
		must(t, table.Commit(t.Context(), nil, ReplaceLinks("links", links, is)))
		got, err := table.Links(t.Context(), "links")
		must(t, err)
		if !slices.Equal(got, is) {
			t.Errorf("wrote %v, read %v", is, got)
		}
		links = is
	}
}

// TestLoad: a ruleset is loaded once. Another version keeps elements and dynamic chains.
func TestLoad(t *testing.T) {
	table, p := open(t)
	must(t, table.Commit(t.Context(), func(c *nftables.Conn) (bool, error) {
		c.AddChain(table.Chain("way-1"))
		return true, nil
	}, []Write{number(1), {Set: "dispatch", Key: []byte{1, 0, 0, 0}, Goto: "way-1", Add: true}}))
	before := list(t, "table inet tested")
	if loaded, err := table.Load(t.Context(), p, false); err != nil || loaded != Unchanged {
		t.Errorf("the same again: loaded %v, error %v", loaded, err)
	}
	for _, again := range []bool{true, false} {
		if !again {
			p.Data["Number"] = "0:2"
		}
		loaded, err := table.Load(t.Context(), p, again)
		if err != nil || loaded != InPlace {
			t.Errorf("again %v: loaded %v, error %v", again, loaded, err)
		}
		must(t, table.Prune(t.Context(), p))
	}
	after := list(t, "table inet tested")
	strip := func(text string) string {
		lines := strings.Split(strings.ReplaceAll(text, "0:1", "0:2"), "\n")
		lines = slices.DeleteFunc(lines, func(l string) bool { return strings.Contains(l, markerPrefix) || strings.Trim(l, "\t}") == "" })
		slices.Sort(lines)
		return strings.Join(lines, "\n")
	}
	if strip(before) != strip(after) || strings.Count(after, markerPrefix) != 1 {
		t.Errorf("before\n%s\nafter\n%s", before, after)
	}
}

// TestNextVersion: Prune removes the sets and chains that the next version lacks. Elements stay.
func TestNextVersion(t *testing.T) {
	table, p := open(t)
	must(t, table.Commit(t.Context(), nil, []Write{number(1), {Set: "dispatch", Key: []byte{7, 0, 0, 0}, Goto: "leaving", Add: true}}))
	next := &Ruleset{Source: second, DynamicChain: keep}
	loaded, err := table.Load(t.Context(), next, false)
	if err != nil || loaded != InPlace {
		t.Fatalf("loaded %v, error %v", loaded, err)
	}
	must(t, table.Commit(t.Context(), nil, []Write{{Set: "dispatch", Key: []byte{7, 0, 0, 0}, Del: true}}))
	must(t, table.Prune(t.Context(), next))
	out := list(t, "table inet tested")
	for _, gone := range []string{"leaving", "old", "short", "links"} {
		if strings.Contains(out, gone) {
			t.Errorf("%s is still there:\n%s", gone, out)
		}
	}
	if got, err := table.numbers(t.Context()); err != nil || len(got) != 1 {
		t.Errorf("elements %v, error %v", got, err)
	}
	if loaded, err := table.Load(t.Context(), p, false); err != nil || loaded != InPlace {
		t.Errorf("back to the first: loaded %v, error %v", loaded, err)
	}
	// A set of the same name has another type: the table is recreated.
	other := &Ruleset{Source: strings.Replace(second, "type ipv4_addr : classid", "type ipv6_addr . inet_service : classid", 1), DynamicChain: keep}
	if loaded, err := table.Load(t.Context(), other, false); err != nil || loaded != Recreated {
		t.Errorf("another shape: loaded %v, error %v", loaded, err)
	}
	if out := list(t, "table inet tested"); !strings.Contains(out, "ipv6_addr . inet_service") {
		t.Errorf("another shape was not loaded:\n%s", out)
	}
}

// TestDeclare: the sets of a version are added while another version runs. Load switches the rules.
func TestDeclare(t *testing.T) {
	table, p := open(t)
	if runs, err := table.Declare(t.Context(), p); err != nil || runs != Unchanged {
		t.Errorf("what runs: %v, error %v", runs, err)
	}
	next := &Ruleset{Source: strings.Replace(second, "set nets", "set networks", 1), DynamicChain: keep}
	next.Source = strings.Replace(next.Source, "@nets", "@networks", 1)
	before := list(t, "chain inet tested input")
	for range 2 {
		if runs, err := table.Declare(t.Context(), next); err != nil || runs != InPlace {
			t.Errorf("another one runs: %v, error %v", runs, err)
		}
	}
	if out := list(t, "table inet tested"); !strings.Contains(out, "set networks") || !strings.Contains(out, "set nets") {
		t.Errorf("the sets of both should be there:\n%s", out)
	}
	if out := list(t, "chain inet tested input"); out != before {
		t.Errorf("the rules changed:\n%s", out)
	}
	must(t, table.Commit(t.Context(), nil, ReplacePrefixes("networks", true, nil, []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")})))
	_, err := table.Load(t.Context(), next, false)
	must(t, err)
	must(t, table.Prune(t.Context(), next))
	if out := list(t, "table inet tested"); strings.Contains(out, "set nets") || !strings.Contains(out, "10.0.0.0/8") {
		t.Errorf("in the end:\n%s", out)
	}
}

// TestCounters: Elements reads the counters of elements.
func TestCounters(t *testing.T) {
	table, _ := open(t)
	must(t, table.Commit(t.Context(), nil, []Write{{Set: "counted", Key: []byte{10, 0, 0, 1}, Add: true}}))
	must(t, table.Run(t.Context(), "add element inet tested counted { 10.0.0.2 counter packets 7 bytes 420 }"))
	got := map[byte][2]uint64{}
	must(t, table.Elements(t.Context(), "counted", func(e Element) error {
		got[e.Key[3]] = [2]uint64{e.Packets, e.Bytes}
		return nil
	}))
	if want := (map[byte][2]uint64{1: {0, 0}, 2: {7, 420}}); !reflect.DeepEqual(got, want) {
		t.Errorf("counters are %v, want %v", got, want)
	}
}

func TestWatch(t *testing.T) {
	table, p := open(t)
	w := table.Watch()
	run := func(text string) {
		t.Helper()
		cmd := exec.Command("nft", "-f", "-")
		cmd.Stdin = strings.NewReader(text)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	looks := func(when string, want Change) func() {
		t.Helper()
		got, accept, err := w.Look(t.Context())
		if err != nil || got != want {
			t.Errorf("%s: %v, error %v, want %v", when, got, err, want)
		}
		return accept
	}
	must(t, w.Begin(t.Context()))
	must(t, table.Commit(t.Context(), nil, []Write{number(1)}))
	must(t, w.End(t.Context(), true))
	looks("after the first commit", Nothing)
	must(t, w.Begin(t.Context()))
	must(t, table.Commit(t.Context(), nil, []Write{number(2)}))
	must(t, table.Commit(t.Context(), nil, nil))
	must(t, table.Commit(t.Context(), func(*nftables.Conn) (bool, error) { return false, nil }, []Write{number(3)}))
	must(t, table.Run(t.Context(), "add element inet tested old { 10.0.0.1 }"))
	must(t, w.End(t.Context(), false))
	looks("after our own commits", Nothing)
	must(t, w.Begin(t.Context()))
	must(t, table.Commit(t.Context(), func(c *nftables.Conn) (bool, error) {
		c.AddRule(&nftables.Rule{Table: table.Ref(), Chain: c.AddChain(table.Chain("way-1"))})
		c.AddChain(table.Chain("way-2"))
		return true, nil
	}, nil))
	must(t, w.EndChains(t.Context(), []string{"way-1", "way-2"}, nil))
	must(t, w.Begin(t.Context()))
	must(t, table.Commit(t.Context(), func(c *nftables.Conn) (bool, error) {
		c.DelChain(table.Chain("way-2"))
		return true, nil
	}, nil))
	must(t, w.EndChains(t.Context(), nil, []string{"way-2"}))
	run("add table inet theirs")
	accept := looks("after another's table came", Elements)
	looks("and not yet accepted", Elements)
	accept()
	looks("and accepted", Nothing)
	run("flush map inet tested numbers")
	looks("after our elements were flushed", Elements)()
	for _, rule := range []string{"add rule inet tested leaving drop", "flush chain inet tested leaving", "flush chain inet tested way-1", "add chain inet tested stranger"} {
		run(rule)
		looks(rule, Rules)
		w.Reset()
		must(t, w.Begin(t.Context()))
		_, err := table.Load(t.Context(), p, true)
		must(t, err)
		must(t, w.End(t.Context(), true))
		looks("after loading again", Nothing)
	}
	run("delete table inet tested")
	looks("after the table was deleted", Rules)
}

func TestDelete(t *testing.T) {
	table, p := open(t)
	foreign := "add table inet theirs"
	must(t, table.Run(t.Context(), foreign))
	before := list(t, "tables")
	must(t, table.Delete(t.Context()))
	must(t, table.Delete(t.Context()))
	if after := list(t, "tables"); after != "table inet theirs\n" {
		t.Errorf("tables before\n%safter\n%s", before, after)
	}
	if _, err := table.Load(t.Context(), p, false); err != nil {
		t.Errorf("load after a delete: %v", err)
	}
	if there, err := table.Chains(t.Context()); err != nil || !there["input"] {
		t.Errorf("chains %v, error %v", there, err)
	}
}

// TestFaults: a write that fails leaves no queued messages, and no half of its changes.
func TestFaults(t *testing.T) {
	table, p := open(t)
	injected := errors.New("injected")
	table.FailWrites(func() error { return injected })
	if err := table.Commit(t.Context(), nil, []Write{number(1)}); !errors.Is(err, injected) {
		t.Errorf("commit: %v", err)
	}
	if _, err := table.Load(context.Background(), p, true); !errors.Is(err, injected) {
		t.Errorf("load: %v", err)
	}
	if err := table.Delete(t.Context()); !errors.Is(err, injected) {
		t.Errorf("delete: %v", err)
	}
	table.FailWrites(nil)
	must(t, table.Commit(t.Context(), nil, []Write{number(2)}))
	bad := number(3)
	bad.Key = []byte{1}
	if err := table.Commit(t.Context(), nil, []Write{number(4), bad}); err == nil {
		t.Error("a key of one byte was taken")
	}
	must(t, table.Commit(t.Context(), nil, []Write{number(5)}))
	if got, err := table.numbers(t.Context()); err != nil || len(got) != 2 {
		t.Errorf("elements %v, error %v", got, err)
	}
}
