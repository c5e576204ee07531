// Package nftables is the datapath of mode nftables.
//
//	Table ─ Diff ─→ changes ─ render ─→ frontendState ─ plan ─→ Writes ─ Commit ─→ kernel
//	                             ↑                                                       │
//	                             └─────────── state ←───────── read (first, or after an error)
//
// The ruleset (ruleset.nft.tmpl) is constant and defines the path of a packet. It is loaded as text, once per version.
// A Service is a handful of elements of its maps. So the cost of a change depends on the size of the change only, with
// ten Services or fifty thousand.
//
// The package encapsulates the layout of a Table in those maps. In addition to the contract of package datapath it
// promises:
//   - An endpoint that stays keeps its slot, except with Maglev.
//   - Between two transactions of a Sync every frontend is complete.
//   - Another version takes over the elements in place.
//   - It changes only its own table, inet fairway (Config.Table).
//
// It needs the program nft at the first Sync of a new version, and Linux 5.13 or later for reject in prerouting and for
// concatenated data in maps.
package nftables

import (
	"context"
	_ "embed"
	"fmt"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/datapath/nftset"
	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/kernel/numbers"
	"github.com/fairway-net/fairway/internal/service"
)

// DefaultMark is the mark of kube-proxy: bit 14.
const DefaultMark = numbers.MarkMasquerade

// Config configures the datapath. The zero value works.
type Config struct {
	// Mark is the bit of the packet mark that means "masquerade". 0: DefaultMark.
	Mark uint32
	// CountTraffic counts connections, packets and bytes of each Service port. This costs some lookups for each
	// connection and each packet. Rejects and drops are always counted.
	CountTraffic bool
	// Table is the name of the table of nf_tables. Empty: fairway. Mode ebpf has a table of its own.
	Table string
}

// Datapath implements datapath.Datapath.
type Datapath struct {
	datapath.Tracked
	ruleset    *nft.Ruleset
	text       string // the ruleset as text, for Info
	writer     ruleWriter
	count      bool   // count traffic
	name       string // the table's name
	syncer     *nftset.Syncer[*state]
	table      *service.Table      // the table in the kernel; nil: unknown, the next Sync reads the kernel
	state      *state              // the same as elements
	adopted    *state              // what Adopt read before the first Sync
	pruneAgain map[affinityID]bool // the affinity IDs that the next Check prunes
}

var _ datapath.Datapath = (*Datapath)(nil)

//go:embed ruleset.nft.tmpl
var rulesetText string

// New returns a datapath. It does not access the kernel.
func New(cfg Config) (*Datapath, error) {
	if cfg.Mark == 0 {
		cfg.Mark = DefaultMark
	}
	if cfg.Table == "" {
		cfg.Table = numbers.TableNFTables
	}
	d := &Datapath{writer: ruleWriter{mark: cfg.Mark, count: cfg.CountTraffic}, count: cfg.CountTraffic, name: cfg.Table}
	d.ruleset = &nft.Ruleset{
		Source: rulesetText,
		Data: map[string]any{
			"Mark":   fmt.Sprintf("%#x", cfg.Mark),
			"Reject": verdictReject, "Drop": verdictDrop, "PolicyCheck": verdictPolicyCheck,
			"ExternalOffset": externalOffset, "DropInvalid": true,
			"Count": cfg.CountTraffic, "Protocols": []string{"tcp", "udp", "sctp"},
		},
		Salt:         d.writer.salt(),
		DynamicChain: isDynamicChain, FixListing: fixListing,
	}
	d.syncer = nftset.NewSyncer(datapath.NFTables, nft.New(cfg.Table), d.read)
	var err error
	if d.text, err = d.ruleset.Text(cfg.Table); err != nil {
		return nil, err
	}
	return d, nil
}

// Info implements datapath.Datapath.
func (d *Datapath) Info() datapath.Info {
	counts := datapath.CountsRejects | datapath.CountsDrops
	if d.count {
		counts |= datapath.CountsConnections | datapath.CountsPackets | datapath.CountsBytes
	}
	return datapath.Info{Name: datapath.NFTables, Program: d.text, Capabilities: datapath.Capabilities{
		Algorithms: service.AlgorithmsOf(service.Random, service.RoundRobin, service.SourceHash, service.DestHash, service.Maglev),
		Protocols:  []api.Proto{api.TCP, api.UDP, api.SCTP},
		Counts:     counts,
	}}
}

// FailWrites makes every write call f first and fail with the error of f. It is for tests that inject faults.
func (d *Datapath) FailWrites(f func() error) { d.syncer.Table.FailWrites(f) }

// Probe reports why the datapath cannot work here: missing privileges, no nf_tables in the kernel, or no program nft.
// It changes nothing.
func (d *Datapath) Probe(ctx context.Context) error { return d.syncer.Table.Probe(ctx) }

// Drain implements datapath.Datapath.
func (d *Datapath) Drain(ctx context.Context) (bool, error) { return datapath.Drained(d.Cleanup(ctx)) }

// Close implements datapath.Datapath.
func (d *Datapath) Close() { d.forget() }

// forget makes the next Sync read the kernel.
func (d *Datapath) forget() {
	d.table, d.state, d.adopted = nil, nil, nil
	d.syncer.Forget()
}
