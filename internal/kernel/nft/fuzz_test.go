package nft

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/kernel/netlink"
)

// FuzzParse: no answer makes a parser panic, and no result is larger than the answer. The seeds in testdata are answers
// of a kernel (TestSeeds -update).
func FuzzParse(f *testing.F) {
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		elements := 0
		_ = parseElements(b, func(e Element) error {
			elements++
			if n := len(e.Key) + len(e.Last) + len(e.Data) + len(e.Comment); n > len(b) {
				t.Fatalf("element of %d bytes in %d", n, len(b))
			}
			return nil
		})
		if elements > len(b)/4 {
			t.Fatalf("%d elements in %d bytes", elements, len(b))
		}
		if r, _, _ := parseRule(b); len(r.Chain)+len(r.Comment)+len(r.Jump) > len(b) {
			t.Fatalf("rule %+v of %d bytes", r, len(b))
		}
		if c, table, _ := parseChain(b); len(c.Name)+len(table) > len(b) {
			t.Fatalf("chain %+v of %d bytes", c, len(b))
		}
		if s, _ := parseSet(b); len(s.name) > len(b) {
			t.Fatalf("set %q of %d bytes", s.name, len(b))
		}
		_, _ = parseTable(b)
		_, _ = parseGeneration(b)
	})
}

var update = flag.Bool("update", false, "write the fuzzers' seeds")

// TestSeeds: the parsers read the kernel's answers without an error. With -update the answers become seeds.
func TestSeeds(t *testing.T) {
	table, _ := open(t)
	must(t, table.Commit(t.Context(), func(c *nftables.Conn) (bool, error) {
		c.AddChain(table.Chain("way-1"))
		return true, nil
	}, []Write{
		number(1), {Set: "counted", Key: []byte{10, 0, 0, 1}, Add: true}, {Set: "nets", Key: []byte{10, 0, 0, 0}, End: []byte{11, 0, 0, 0}, Add: true},
		{Set: "dispatch", Key: []byte{1, 0, 0, 0}, Goto: "way-1", Add: true},
	}))
	must(t, table.Run(t.Context(), `add rule inet tested leaving counter comment "text"`))
	var r Reader
	defer r.Close()
	name := netlink.AppendText(nil, 1, "tested") // NFTA_TABLE_NAME, NFTA_CHAIN_TABLE, …
	for _, kind := range []struct {
		name  string
		get   uint16
		attrs []byte
		parse func([]byte) error
	}{
		{"table", unix.NFT_MSG_GETTABLE, nil, func(b []byte) error { _, err := parseTable(b); return err }},
		{"chain", unix.NFT_MSG_GETCHAIN, nil, func(b []byte) error { _, _, err := parseChain(b); return err }},
		{"set", unix.NFT_MSG_GETSET, name, func(b []byte) error { _, err := parseSet(b); return err }},
		{"rule", unix.NFT_MSG_GETRULE, name, func(b []byte) error { _, _, err := parseRule(b); return err }},
		{"numbers", unix.NFT_MSG_GETSETELEM, netlink.AppendText(name, 2, "numbers"), nil},
		{"counted", unix.NFT_MSG_GETSETELEM, netlink.AppendText(name, 2, "counted"), nil},
		{"nets", unix.NFT_MSG_GETSETELEM, netlink.AppendText(name, 2, "nets"), nil},
		{"dispatch", unix.NFT_MSG_GETSETELEM, netlink.AppendText(name, 2, "dispatch"), nil},
	} {
		n := 0
		_, err := r.ask(t.Context(), Inet, kind.get, unix.NLM_F_DUMP, kind.attrs, func(b []byte) error {
			n++
			if *update {
				path := filepath.Join("testdata", "fuzz", "FuzzParse", fmt.Sprint(kind.name, n))
				must(t, os.MkdirAll(filepath.Dir(path), 0o755))
				must(t, os.WriteFile(path, fmt.Appendf(nil, "go test fuzz v1\n[]byte(%q)\n", b), 0o644))
			}
			if kind.parse != nil {
				return kind.parse(b)
			}
			return parseElements(b, func(Element) error { return nil })
		})
		if err != nil || n == 0 {
			t.Errorf("%s: %d answers, error %v", kind.name, n, err)
		}
	}
}
