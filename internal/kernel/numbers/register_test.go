package numbers

import (
	"cmp"
	"flag"
	"fmt"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"go/types"
	"math/bits"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write docs/numbers.md")

// TestOverlaps: no two numbers of Fairway overlap, and no number is the default of another program, unless Shared gives
// a reason.
func TestOverlaps(t *testing.T) {
	others := readOthers(t)
	for i, n := range Ours {
		for _, o := range Ours[i+1:] {
			if n.overlaps(o) {
				t.Errorf("%s %s: for %q, and for %q", n.Space, n.text(), n.For, o.For)
			}
		}
		shared := false
		for _, o := range others {
			if n.overlaps(o) {
				shared = true
				if n.Shared == "" {
					t.Errorf("%s %s for %q is %s's, for %s", n.Space, n.text(), n.For, o.Owner, o.For)
				}
			}
		}
		if n.Shared != "" && !shared {
			t.Errorf("%s %s: no program on the list shares it", n.Space, n.text())
		}
		if n.Space == PacketMark && n.Mask == 0 && bits.OnesCount32(n.From) != 1 {
			t.Errorf("mark %#x is not one bit", n.From)
		}
	}
}

func readOthers(t *testing.T) []Number {
	t.Helper()
	others, err := Others()
	if err != nil {
		t.Fatal(err)
	}
	return others
}

// TestParseOthers: the parser refuses a wrong line, and names its number.
func TestParseOthers(t *testing.T) {
	for text, want := range map[string]string{
		"TCP port:\n  53-54  DNS programs  DNS\n":          "",
		"  53  DNS  DNS\n":                                 "others.txt:1: ",
		"Colour:\n":                                        "others.txt:1: \"Colour\"",
		"TCP port:\n  53 DNS  DNS\n":                       "others.txt:2: ",
		"TCP port:\n\n  0x1ffffffff  a program  a thing\n": "others.txt:3: ",
	} {
		got, err := parseOthers(text)
		switch {
		case want == "" && (err != nil || len(got) != 1 || got[0] != Number{Space: TCPPort, From: 53, To: 54, Owner: "DNS programs", For: "DNS"}):
			t.Errorf("%q: %+v, %v", text, got, err)
		case want != "" && (err == nil || !strings.HasPrefix(err.Error(), want)):
			t.Errorf("%q: error %v, want %s…", text, err, want)
		}
	}
}

// TestFormer: TestOverlaps would find the conflicts of numbers that had to change.
func TestFormer(t *testing.T) {
	for _, former := range []Number{{Space: PacketMark, From: 0x2000}, {Space: ConnMark, From: 0x0800_0000}} {
		found := false
		for _, o := range slices.Concat(Ours, readOthers(t)) {
			found = found || former.overlaps(o)
		}
		if !found {
			t.Errorf("%s %s overlaps with nothing", former.Space, former.text())
		}
	}
}

// internalDir is the path of internal/ from this package.
const internalDir = "../.."

// TestHooks: the register and the rulesets have the same hooks.
func TestHooks(t *testing.T) {
	files := map[string]string{
		"datapath/nftables/ruleset.nft.tmpl": TableNFTables, "datapath/iptables/helper.nft.tmpl": TableIPTables,
		"datapath/ipvs/ruleset.nft.tmpl": TableIPVS, "datapath/userspace/ruleset.nft.tmpl": TableUserspace,
		"flow/reset/rules.nft": TableReset, "networkpolicy/nftables/policy.nft": TablePolicy,
		"flow/conntrack/share/rules.nft": TableConntrack,
		"podnetwork/node/pods.nft":       TablePods, "podnetwork/node/egress.nft": TableEgress, "podnetwork/hostport/rules.nft": TableHostPorts,
		"loadbalancer/layer2/fence/fence.nft.tmpl": TableFence, "loadbalancer/layer2/fence/former.nft": TableFormer,
		"loadbalancer/bgp/peerguard/rules.nft": TablePeers,
		"loadbalancer/bgp/aggregates.nft":      TableAggregates,
	}
	type hookOf struct {
		table string
		Hook
	}
	registered, seen := map[hookOf]bool{}, map[hookOf]bool{}
	for _, table := range Tables {
		for _, h := range table.Hooks {
			registered[hookOf{table.Name, h}] = true
		}
	}
	hook := regexp.MustCompile(`type (\w+) hook (\w+)(?: device "lo")? priority ([^;]+);`)
	for _, pattern := range []string{"*/*/*.nft*", "*/*/*/*.nft*"} {
		all, err := filepath.Glob(filepath.Join(internalDir, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range all {
			name, err := filepath.Rel(internalDir, path)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(name, "testdata") {
				continue
			}
			table, ok := files[filepath.ToSlash(name)]
			if !ok {
				t.Errorf("%s: add it to this test, and its table to the register", name)
				continue
			}
			delete(files, name)
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range hook.FindAllStringSubmatch(string(text), -1) {
				if strings.HasPrefix(m[3], "{{") {
					continue // a constant of this package
				}
				h := hookOf{table, Hook{m[1], m[2], hookPriority(t, m[3])}}
				if table == TableNFTables { // mode ebpf loads the same rules
					seen[hookOf{TableEBPF, h.Hook}] = true
				}
				if seen[h] = true; !registered[h] {
					t.Errorf("%s: %+v is not in the register", name, h)
				}
			}
		}
	}
	for name := range files {
		t.Errorf("%s is not there any more", name)
	}
	for h := range registered {
		constant := slices.Contains([]int{HookReset, HookChallenge, HookPods, HookSourceCheck, HookAffinity, HookHostPorts, HookPolicy, HookPolicyInput, HookRaw, HookEgress, HookEgressMark, HookEgressUnmark, HookPeers, HookShare, HookTrace, HookTraceReply}, h.Priority)
		if !seen[h] && !constant {
			t.Errorf("no ruleset has %+v", h)
		}
	}
}

// TestRegistered: the register has every constant, so that TestOverlaps sees it.
func TestRegistered(t *testing.T) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, "numbers.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	quiet := types.Config{Error: func(error) {}, Importer: nil} // the values need no imports
	pkg, _ := quiet.Check("numbers", fset, []*ast.File{file}, nil)
	parts := []string{"MasqueradeBit", "MaskEgress", "MaskFence", "ConnMarkNumber", "PortsUserspace", "RouteTablesEgress"} // parts of other numbers, or counts
	spaces := map[string][]Space{
		"Mark": {PacketMark}, "Egress": {PacketMark}, "ConnMark": {ConnMark}, "Priority": {Priority}, "RouteProtocol": {RouteProto},
		"RouteTable": {RouteTable}, "RulePriority": {RulePriority}, "Port": {TCPPort, UDPPort},
	}
	n := 0
	for _, name := range pkg.Scope().Names() {
		c, ok := pkg.Scope().Lookup(name).(*types.Const)
		if !ok || slices.Contains(parts, name) {
			continue
		}
		value, exact := constant.Uint64Val(constant.ToInt(c.Val()))
		prefix := ""
		for p := range spaces {
			if strings.HasPrefix(name, p) && len(p) > len(prefix) {
				prefix = p
			}
		}
		if prefix == "" || !exact {
			if !slices.ContainsFunc([]string{"Hook", "Table", "Range", "VNI", "EtherType"}, func(p string) bool { return strings.HasPrefix(name, p) }) && !slices.Contains([]string{"PacketMark"}, name) {
				t.Errorf("%s is of no space: add it to this test, and to the docs", name)
			}
			continue
		}
		n++
		if !slices.ContainsFunc(Ours, func(o Number) bool {
			return slices.Contains(spaces[prefix], o.Space) && (uint32(value)&o.mask() == o.From && o.Mask != 0 || o.From <= uint32(value) && uint32(value) <= o.last())
		}) {
			t.Errorf("%s (%#x) is not in the register", name, value)
		}
	}
	if n < 25 {
		t.Errorf("only %d constants were found", n)
	}
}

// hookPriority reads "dstnat - 1".
func hookPriority(t *testing.T, text string) int {
	t.Helper()
	named := map[string]int{"raw": -300, "mangle": -150, "dstnat": -100, "filter": 0, "security": 50, "srcnat": 100}
	name, offset, _ := strings.Cut(strings.ReplaceAll(text, " ", ""), "-")
	if base, ok := named[name]; ok {
		n, err := strconv.Atoi(cmp.Or(offset, "0"))
		if err != nil {
			t.Fatal(err)
		}
		return base - n
	}
	n, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestDocs: docs/numbers.md is generated from the register.
func TestDocs(t *testing.T) {
	path := filepath.Join("..", "..", "..", "docs", "numbers.md")
	want := docs(readOthers(t))
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s is not what the register says; write it with: go test ./internal/kernel/numbers -update", path)
	}
}

func (n Number) text() string {
	switch {
	case n.Space.bits() && n.Mask != 0:
		return fmt.Sprintf("%#x/%#x", n.From, n.Mask)
	case n.Space == Priority && n.To != 0:
		return fmt.Sprintf("%#x–%#x", n.From, n.To)
	case n.Space.bits() || n.Space == Priority && n.From > 15:
		return fmt.Sprintf("%#x", n.From)
	case n.To != 0:
		return fmt.Sprintf("%d–%d", n.From, n.To)
	}
	return strconv.Itoa(int(n.From))
}

func docs(others []Number) string {
	var b strings.Builder
	b.WriteString(`# Numbers

The numbers that programs on a node share: Fairway's, and the defaults of other programs, in the node's own network
namespace. Compare them with what the node has:

    nft list ruleset | grep -n mark
    ip rule; ip route show table all proto 70

A mark is bits: ` + "`0x1000`" + ` is one bit, ` + "`0xfa000000/0xff000000`" + ` is the value of eight bits. A number is "shared" if
Fairway and another program mean the same by it. A test finds every other overlap.

One conflict is not in the tables, because it is not a default. Cilium with IPsec uses the bits 12 to 15 of packets'
marks. They include kube-proxy's mark and the mark of mode userspace. Istio's marks (0x539, 0x111) are in pods'
namespaces.

The page is generated by ` + "`go test ./internal/kernel/numbers -update`" + `.
`)
	for s := range Space(len(spaceNames)) {
		fmt.Fprintf(&b, "\n## %s\n\n| number | whose | for |\n|-|-|-|\n", s)
		for _, all := range [][]Number{Ours, others} {
			for _, n := range all {
				if n.Space != s {
					continue
				}
				owner, what := n.Owner, n.For
				if owner == "" {
					owner = "Fairway"
				}
				if n.Shared != "" {
					what += "; shared: " + n.Shared
				}
				fmt.Fprintf(&b, "| `%s` | %s | %s |\n", n.text(), owner, what)
			}
		}
	}
	fmt.Fprintf(&b, "\n## Addresses\n\nMode ipvs gives `%s` and `%s` to virtual servers. No packet with such an address leaves the node.\n", RangeIPVS4, RangeIPVS6)
	fmt.Fprintf(&b, "\n## Protocol of a frame\n\nThe speaker's packets on `lo` have the protocol `%#x`, IEEE 802's first for local experiments. These frames do not leave the node.\n", EtherTypeFence)
	b.WriteString("\n## Tables of nf_tables\n\nFairway's tables are of family inet, unless the table says otherwise. Other programs' tables are `kube-proxy` (ip and ip6), `calico` (ip and ip6), Docker's `docker-bridges` and `firewalld`.\n\n| table | for | its hooks: priorities |\n|-|-|-|\n")
	for _, table := range Tables {
		var hooks []string
		for _, h := range table.Hooks {
			hooks = append(hooks, fmt.Sprintf("%s (%s) %d", h.Hook, h.Type, h.Priority))
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", table.Name, table.For, strings.Join(hooks, ", "))
	}
	b.WriteString("\nOther programs' hooks have the standard priorities: raw -300, conntrack -200, mangle -150, dstnat -100, filter 0, srcnat 100. Fairway's hooks that must come before or after them are one to ten away.\n")
	return b.String()
}
