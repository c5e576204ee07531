package takeover

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/fairway-net/fairway/internal/kernel/xtables"
)

func saved(t testing.TB) string {
	t.Helper()
	text, err := os.ReadFile("testdata/filter-nat.save")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// scan reads what iptables-save printed.
func scan(t testing.TB, text string) *ruleset {
	t.Helper()
	r := &ruleset{}
	if err := xtables.Scan(strings.NewReader(text), r.add); err != nil {
		t.Skip(err) // a line that is too long
	}
	return r
}

func removal(t testing.TB, text string) string { return scan(t, text).removal() }

// without is what must be left of what iptables-save printed: chains and rules of
// others, in their order.
func without(saved string, gone func(line string) bool) []string {
	var out []string
	for line := range strings.Lines(saved) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "#") || gone(line) {
			continue
		}
		if strings.HasPrefix(line, ":") {
			line, _, _ = strings.Cut(line, " [") // counters
		}
		out = append(out, line)
	}
	return out
}

// foreign reports whether a line of the test's data has nothing to do with kube-proxy.
// It is written down line by line there: what is kube-proxy's names one of its chains
// outside of quotes.
func foreign(line string) bool {
	for word := range xtables.Words(strings.TrimPrefix(line, ":")) {
		if !word.Quoted && xtables.IsKubeProxys(word.Text) {
			return false
		}
	}
	return true
}

func TestRemoval(t *testing.T) {
	got := removal(t, saved(t))
	if removal(t, "") != "" || removal(t, "*nat\n:PREROUTING ACCEPT [0:0]\n:KUBE-FIREWALL - [0:0]\nCOMMIT\n") != "" {
		t.Error("something is removed where nothing is kube-proxy's")
	}
	for _, want := range []string{
		"*mangle\n:KUBE-PROXY-CANARY - [0:0]\n-X KUBE-PROXY-CANARY\nCOMMIT\n",
		"-D INPUT -m comment --comment \"kubernetes health check service ports\" -j KUBE-NODEPORTS\n",
		"-D POSTROUTING -m comment --comment \"kubernetes postrouting rules\" -j KUBE-POSTROUTING\n",
		"-X KUBE-SVC-CG5I4G2RS3ZVWGLK\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	for _, not := range []string{"KUBE-FIREWALL", "KUBELET", "MINE", "CNI-", "KUBE-IPTABLES-HINT", "-j ACCEPT"} {
		if strings.Contains(got, not) {
			t.Errorf("%q is touched:\n%s", not, got)
		}
	}
}

// TestRemovalKeepsWhatOthersUse: a chain of another program that jumps to one of
// kube-proxy's keeps it, with all that it needs.
func TestRemovalKeepsWhatOthersUse(t *testing.T) {
	text := strings.Replace(saved(t), "-A KUBE-EXT-CG", "-A CNI-HOSTPORT-DNAT -s 10.244.0.9/32 -j KUBE-MARK-MASQ\n-A KUBE-EXT-CG", 1)
	got := removal(t, text)
	for _, not := range []string{":KUBE-MARK-MASQ ", "-X KUBE-MARK-MASQ", ":KUBE-POSTROUTING ", "-D POSTROUTING"} {
		if strings.Contains(got, not) {
			t.Errorf("%q in\n%s", not, got)
		}
	}
	if !strings.Contains(got, "-X KUBE-SVC-CG5I4G2RS3ZVWGLK\n") {
		t.Errorf("a chain that no other program uses is kept:\n%s", got)
	}
}

// FuzzRemoval: only kube-proxy's chains are ever emptied or deleted.
func FuzzRemoval(f *testing.F) {
	f.Add(saved(f))
	f.Add("*nat\n:KUBE-SVC-A - [0:0]\n-A X -g KUBE-SVC-A\n:X - [0:0]\n-A KUBE-SVC-A -j KUBE-SVC-A")
	f.Fuzz(func(t *testing.T, text string) {
		var chains []string
		for _, table := range scan(t, text).tables {
			chains = append(chains, table.chains...)
		}
		for line := range strings.Lines(removal(t, text)) {
			line = strings.TrimSuffix(line, "\n")
			if name, ok := strings.CutPrefix(line, "-X "); ok && (!xtables.IsKubeProxys(name) || !slices.Contains(chains, name)) {
				t.Errorf("deletes %q", name)
			}
			if name, ok := strings.CutPrefix(line, ":"); ok && !xtables.IsKubeProxys(strings.TrimSuffix(name, " - [0:0]")) {
				t.Errorf("empties %q", name)
			}
		}
	})
}
