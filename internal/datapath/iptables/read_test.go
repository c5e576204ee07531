package iptables

import (
	"fmt"
	"os"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/datapath/iptables/read"
	"github.com/fairway-net/fairway/internal/kernel/xtables"
	"github.com/fairway-net/fairway/internal/testing/scenario"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// saved returns the rules that iptables-nft-save prints for a family.
func saved(t *testing.T, is4 bool) *read.State {
	t.Helper()
	s, err := read.Save(t.Context(), NFT, is4)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// sameState compares the rules read over netlink with iptables-nft-save's output.
func sameState(t *testing.T, when string) {
	t.Helper()
	var r read.Reader
	defer r.Close()
	for _, is4 := range read.Families() {
		got, err := r.State(t.Context(), is4)
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		want := saved(t, is4)
		for i := range got.Hooks {
			got.Hooks[i].Handle = 0 // text has none
		}
		for _, h := range []*read.State{got, want} {
			slices.SortFunc(h.Hooks, func(a, b hook) int {
				return strings.Compare(a.In.Table+a.In.Name+a.Rule, b.In.Table+b.In.Name+b.Rule)
			})
		}
		if len(got.Chains) != len(want.Chains) {
			t.Errorf("%s: %d chains, want %d", when, len(got.Chains), len(want.Chains))
		}
		for c, rules := range want.Chains {
			if !slices.Equal(rules, got.Chains[c]) {
				t.Errorf("%s: chain %v\n%s\nwant\n%s", when, c, strings.Join(got.Chains[c], "\n"), strings.Join(rules, "\n"))
			}
		}
		got.Chains = want.Chains
		for i := range reflect.TypeFor[read.State]().NumField() {
			name := reflect.TypeFor[read.State]().Field(i).Name
			if a, b := fieldText(got, name), fieldText(want, name); a != b {
				t.Errorf("%s: %s\n%v\nwant\n%v", when, name, a, b)
			}
		}
	}
}

// fieldText returns a field of a state as text. It leaves other programs' chains out, because iptables-nft-save prints
// chains that do not exist.
func fieldText(s *read.State, name string) string {
	v := reflect.ValueOf(s).Elem().FieldByName(name)
	if name != "allChains" {
		return fmt.Sprint(v)
	}
	var ours []string
	for _, k := range v.MapKeys() {
		if c := (chain{Table: k.Field(0).String(), Name: k.Field(1).String()}); read.IsOurs(c) {
			ours = append(ours, fmt.Sprint(c))
		}
	}
	slices.Sort(ours)
	return fmt.Sprint(ours)
}

// TestReadsAsSaved: the rules of each scenario, read over netlink, are iptables-nft-save's text.
func TestReadsAsSaved(t *testing.T) {
	testnet.Enter(t)
	d := open(t, NFT)
	dir, err := scenario.Dir()
	if err != nil {
		t.Fatal(err)
	}
	all, err := scenario.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		sync(t, d, s.Offer(d.Info().Capabilities.Algorithms).Table())
		sameState(t, s.Name)
	}
}

// others are rules of other programs. Some lead to our chains, and Decode does not know some.
const others = `*nat
:CUSTOM - [0:0]
-A PREROUTING -i eth+ -m comment --comment "it's \"quoted\"" -j CUSTOM
-A PREROUTING ! -i lo ! -s 192.0.2.0/25 -p tcp -m tcp ! --dport 80:90 -m comment --comment x -j KUBE-SERVICES
-A POSTROUTING -o eth0 -p udp -m udp ! --dport 53 -g KUBE-POSTROUTING
-A CUSTOM -p icmp -j RETURN
-A CUSTOM -p tcp -m multiport --dports 80,443 -j KUBE-MARK-MASQ
-I KUBE-SVC-AAAAAAAAAAAAAAAA -m limit --limit 1/sec -j ACCEPT
-A KUBE-SVC-AAAAAAAAAAAAAAAA -d 10.128.0.0/9 -p tcp -m tcp --sport 1024 --dport 7 -j RETURN
-A KUBE-SVC-AAAAAAAAAAAAAAAA -s 10.0.0.0/8 -d 10.1.0.0/16 -i veth0 -p udp -m udp --dport 9 -j ACCEPT
COMMIT
*mangle
:KUBE-IPTABLES-HINT - [0:0]
:KUBE-SERVICES - [0:0]
-A PREROUTING -j KUBE-SERVICES
COMMIT
*raw
:PREROUTING DROP [0:0]
-A PREROUTING -s 192.0.2.7 -j NOTRACK
COMMIT
`

// TestReadsOthers: the program prints rules that Decode does not know, and other programs' rules are told from ours.
func TestReadsOthers(t *testing.T) {
	testnet.Enter(t)
	sync(t, open(t, NFT), cluster(3).Table(settings()))
	cmd := exec.Command("iptables-nft-restore", "--noflush")
	cmd.Stdin = strings.NewReader(strings.Replace(others, ":CUSTOM", ":KUBE-SVC-AAAAAAAAAAAAAAAA - [0:0]\n:CUSTOM", 1))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	sameState(t, "rules of others")
	asks(t, "iptables-nft", 3) // for PREROUTING, CUSTOM, and one chain of ours

	text := "*nat\n"
	for i := range 50 {
		text += fmt.Sprintf("-I KUBE-SVC-%016d -m recent --name x --rcheck --seconds 10 -j ACCEPT\n", i)
		text = strings.Replace(text, "\n", fmt.Sprintf("\n:KUBE-SVC-%016d - [0:0]\n", i), 1)
	}
	cmd = exec.Command("iptables-nft-restore", "--noflush")
	cmd.Stdin = strings.NewReader(text + "COMMIT\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	sameState(t, "many that are not known")
	asks(t, "iptables-nft-save", 1)
}

// asks reads both families, and checks that only one program runs, times times.
func asks(t *testing.T, program string, times int) {
	t.Helper()
	path := os.Getenv("PATH")
	defer os.Setenv("PATH", path)
	runs := countRuns(t, saves()...)
	var r read.Reader
	defer r.Close()
	for _, is4 := range read.Families() {
		if _, err := r.State(t.Context(), is4); err != nil {
			t.Error(err)
		}
	}
	for _, name := range saves() {
		want := map[string]int{program: times}[name]
		if runs(name) != want {
			t.Errorf("%s ran %d times, want %d", name, runs(name), want)
		}
	}
}

// TestReadBack: Sync notices that a program reports success and writes other rules, and the next Sync repairs the
// rules. iptables-nft-restore does so if the kernel does not answer which revision of a match it has.
func TestReadBack(t *testing.T) {
	testnet.Enter(t)
	path := os.Getenv("PATH")
	writesWrong(t, NFT)
	d, table := open(t, NFT), cluster(3).Table(settings())
	if _, err := d.Sync(t.Context(), table); err == nil || !strings.Contains(err.Error(), "iptables-nft-restore") {
		t.Errorf("a wrong rule was not noticed: %v", err)
	}
	other := open(t, NFT) // a version of iptables that always does that must not keep a node from starting
	_, first := other.Sync(t.Context(), table)
	stats, err := other.Sync(t.Context(), table)
	if first == nil || err != nil || !strings.Contains(stats.Differs, "-m mark ! --mark") {
		t.Errorf("the same twice: %v, %v; told: %q", first, err, stats.Differs)
	}
	checked := func(want bool) {
		t.Helper()
		if drift, err := other.Check(t.Context()); err != nil || drift.Retry != want || drift.Rules || drift.Elements {
			t.Errorf("Check says %+v, %v; want a retry: %v", drift, err, want)
		}
	}
	checked(false)
	other.mismatch.retryAt = time.Now() // it is time
	checked(true)
	if stats, err = other.Sync(t.Context(), table); err != nil || stats.Differs == "" || other.mismatch.pause <= firstPause {
		t.Errorf("tried again: %v, told: %q, the next try is after %v", err, stats.Differs, other.mismatch.pause)
	}
	t.Setenv("PATH", path)
	other.mismatch.retryAt = time.Now()
	checked(true)
	if stats, err = other.Sync(t.Context(), table); err != nil || stats.Differs != "" {
		t.Errorf("with a program that works: %v, told: %q", err, stats.Differs)
	}
	checked(false)
	sync(t, d, table)
	if rule := saved(t, true).Chains[natChain(xtables.KubePostrouting)][0]; rule != "-m mark ! --mark 0x4000/0x4000 -j RETURN" {
		t.Errorf("after the next Sync the rule is %q", rule)
	}
}

// writesWrong puts a script before iptables-restore that changes one rule so that the rule never matches.
func writesWrong(t *testing.T, v Variant) {
	t.Helper()
	name := xtables.Program(v, true, "restore")
	real, err := exec.LookPath(name)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	script := fmt.Sprintf("#!/bin/sh\nsed 's|-m mark ! --mark 0x4000/0x4000|-m mark --mark 0x4000/0x0|' | exec %s \"$@\"\n", real)
	if err := os.WriteFile(dir+"/"+name, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

// TestReadBackLegacy: the next Check reads back the rules of iptables-legacy-restore, because the kernel does not count
// their changes. The next Sync repairs the rules.
func TestReadBackLegacy(t *testing.T) {
	testnet.Enter(t)
	path := os.Getenv("PATH")
	writesWrong(t, Legacy)
	d, table := open(t, Legacy), cluster(3).Table(settings())
	sync(t, d, table)
	if drift, err := d.Check(t.Context()); err != nil || !drift.Rules {
		t.Errorf("a wrong rule was not noticed: %+v, %v", drift, err)
	}
	t.Setenv("PATH", path)
	sync(t, d, table)
	d.nextRead = time.Time{} // it is time
	if drift, err := d.Check(t.Context()); err != nil || drift.Any() {
		t.Errorf("with a program that works: %+v, %v", drift, err)
	}
	h, err := read.Save(t.Context(), Legacy, true)
	if err != nil {
		t.Fatal(err)
	}
	if rule := h.Chains[natChain(xtables.KubePostrouting)][0]; rule != "-m mark ! --mark 0x4000/0x4000 -j RETURN" {
		t.Errorf("after the next Sync the rule is %q", rule)
	}
}
