package nftables

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// TestCheckNotices: Check notices every change of our table by another program, and the next Sync repairs the table.
func TestCheckNotices(t *testing.T) {
	testnet.Enter(t)
	nft := func(command string) string {
		t.Helper()
		out, err := exec.Command("nft", strings.Fields(command)...).CombinedOutput()
		if err != nil {
			t.Fatalf("nft %s: %v: %s", command, err, out)
		}
		return string(out)
	}
	d, b := open(t), cluster(50)
	defer d.Close()
	table := b.Table(settings())
	sync(t, d, table)
	rules := nft("list table inet fairway")
	for _, command := range []string{
		"delete element inet fairway frontends4 { 10.64.0.7 . tcp . 80 }",
		"delete element inet fairway endpoints4 { 10.64.0.7 . tcp . 80 . 0x1 }",
		"add element inet fairway frontends4 { 10.9.9.9 . tcp . 80 : 0:1 }",
		"flush map inet fairway endpoints4",
		"flush set inet fairway hairpin4",
		"flush set inet fairway pods4",
		"flush chain inet fairway services",
		"add rule inet fairway prerouting counter",
		"replace rule inet fairway services handle HANDLE counter", // the rule keeps its handle
		"flush chain inet fairway lb-random-2-masquerade-off-cluster",
		"add chain inet fairway stranger",
		"delete table inet fairway",
		"flush ruleset",
	} {
		if drift, err := d.Check(t.Context()); err != nil || drift.Any() {
			t.Fatalf("before nft %s: drift %+v, error %v", command, drift, err)
		}
		if strings.Contains(command, "HANDLE") {
			_, first, _ := strings.Cut(nft("-a list chain inet fairway services"), "\n\t\t")
			first, _, _ = strings.Cut(first, "\n")
			command = strings.ReplaceAll(command, "HANDLE", first[strings.LastIndex(first, " ")+1:])
		}
		nft(command)
		drifts(t, d, "nft "+command)
		sync(t, d, table)
		held, err := d.Adopt(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if diff := service.Diff(held.Table, table); len(diff) > 0 || !held.Table.Settings.Equal(table.Settings) {
			t.Errorf("after nft %s and a Sync: %d frontends differ", command, len(diff))
		}
	}
	if got := nft("list table inet fairway"); sortedLines(got) != sortedLines(rules) {
		t.Errorf("in the end the rules differ\ngot\n%s\nwant\n%s", got, rules)
	}
}

// drifts fails if Check does not find a change. It repeats Check, because a Check that has just read the elements waits
// before it reads them again.
func drifts(t *testing.T, d *Datapath, after string) {
	t.Helper()
	for until := time.Now().Add(time.Minute); time.Now().Before(until); time.Sleep(time.Millisecond) {
		drift, err := d.Check(t.Context())
		if err != nil {
			t.Fatalf("after %s: %v", after, err)
		}
		if drift.Any() {
			return
		}
	}
	t.Errorf("after %s there is no drift", after)
}

// sortedLines removes the order of elements and chains from a listing.
func sortedLines(text string) string {
	words := strings.Fields(strings.ReplaceAll(text, ",", " "))
	slices.Sort(words)
	return strings.Join(words, " ")
}
