package iptables

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/datapath/nftset"
	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/kernel/numbers"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// TestFormerClients: what releases up to 77b8eb1 remember, client by client, leads to the same
// endpoints after an upgrade, for the rest of its time; nothing of theirs is left. The lists
// of a Service that are too many begin anew with few buckets.
func TestFormerClients(t *testing.T) {
	testnet.Enter(t)
	var all []*service.Frontend
	for i := range nftset.FullLists + 2 {
		f := numbered(1, 3).Frontends[0]
		f.Addr, f.Service.Port, f.Affinity = netip.AddrPortFrom(f.Addr.Addr(), uint16(80+i)), fmt.Sprint("p", i), 3*time.Hour
		all = append(all, f)
	}
	table := service.NewTable(settings(), all)
	before := open(t, NFT)
	sync(t, before, table)
	marks := map[uint32]uint32{}
	text := formerHelper(t, before, all, marks)
	before.Close()
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}

	after := open(t, NFT)
	sync(t, after, table)
	kept := 0
	if err := after.helper.table.Elements(t.Context(), affinityBuckets(true), func(e nft.Element) error {
		for list, mark := range marks {
			if string(e.Key) == string(nftset.BucketKey[listNumber](append(nftset.Number(list), formerClient.AsSlice()...))) {
				if kept++; string(e.Data) != string(nftset.Number(markKnown|mark)) || e.Expires > time.Hour || e.Expires < 30*time.Minute {
					t.Errorf("list %d: %x for %v, want %x for an hour", list, e.Data, e.Expires, nftset.Number(markKnown|mark))
				}
			}
		}
		return nil
	}); err != nil || kept != nftset.FullLists {
		t.Errorf("clients of %d lists are kept (%v), want %d", kept, err, nftset.FullLists)
	}
	if n := len(after.renderer.fullLists["default/svc-1"+"4"]); n > nftset.FullLists {
		t.Errorf("%d lists have many buckets", n)
	}
	for _, set := range []string{"affinity4", "learn"} {
		if err := after.helper.table.Elements(t.Context(), set, func(nft.Element) error { return nil }); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("set %s is left (%v)", set, err)
		}
	}
	if chains, err := after.helper.table.Chains(t.Context()); err != nil || chains["learn-10800"] {
		t.Errorf("chains are left: %v (%v)", chains, err)
	}
}

// formerClient is who is remembered.
var formerClient = netip.MustParseAddr("198.51.100.7")

// formerHelper is what nft reads to make of the helper one of a former release, which remembers
// a client of each list. marks are the endpoints' marks, by list.
func formerHelper(t *testing.T, before *Datapath, all []*service.Frontend, marks map[uint32]uint32) string {
	t.Helper()
	var former strings.Builder
	marker := ""
	chains, err := before.helper.table.Chains(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for name := range chains {
		if strings.HasPrefix(name, "program-") {
			marker = name
		}
	}
	fmt.Fprintf(&former, "delete chain inet %[1]s %[2]s\nadd chain inet %[1]s program-0\n", numbers.TableIPTables, marker)
	fmt.Fprintf(&former, `add map inet %[1]s affinity4 { type classid . ipv4_addr : mark; flags dynamic,timeout; size 4194304; }
add chain inet %[1]s learn-10800
add rule inet %[1]s learn-10800 update @affinity4 { meta priority . ip saddr timeout 3h : ct mark }
add map inet %[1]s learn { type mark : verdict; }
`, numbers.TableIPTables)
	// As before, each list has a number without fewBit.
	for i, f := range all {
		list := uint32(i + 1)
		marks[list] = before.renderer.mark(sep + hash(f.Service, f.Proto, f.Internal.Endpoints[i%3].Addr.String()))
		fmt.Fprintf(&former, "add element inet %s affinity4 { %x:%x . %v timeout 1h : %#x }\n", numbers.TableIPTables, list>>16, list&0xffff, formerClient, markKnown|marks[list])
		fmt.Fprintf(&former, "add element inet %s learn { %#x : goto learn-10800 }\n", numbers.TableIPTables, markChosen|marks[list])
		for _, e := range f.Internal.Endpoints {
			mark := markChosen | before.renderer.mark(sep+hash(f.Service, f.Proto, e.Addr.String()))
			fmt.Fprintf(&former, "delete element inet %[1]s affinity-lists { %#[2]x }\nadd element inet %[1]s affinity-lists { %#[2]x : 0:%[3]x }\n", numbers.TableIPTables, mark, list)
		}
	}
	return former.String()
}
