package ipvs

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/fairway-net/fairway/internal/datapath/nftset"
	"github.com/fairway-net/fairway/internal/kernel/nft"
)

// Session affinity. IPVS remembers each client of a persistent virtual server by a template,
// for as long as the affinity lasts, and has no limit for them but memory. So a client that
// is new must be let in by a rule, up to so many clients of a virtual server in that time.
// Others are sent to a second virtual server, at the same address and the port after it,
// which hashes the client's address: they stay at their endpoint too, until the endpoints
// change. docs/decisions/0040-affinity-in-iptables-and-ipvs.md says why.

// Each of the first fullServers virtual servers of a Service and family remembers manyClients;
// the others, whose number has the bit fewServer, fewClients. So 64 Services fill the set of
// clients, whose size is 4,194,304: then no client is let in, and all new ones are hashed.
const (
	manyClients = 1 << 14
	fewClients  = 1 << 8
	fullServers = 4
	fewServer   = 1 << 21
)

// overflowPortNumber is the port of the virtual servers that hash.
const overflowPortNumber = serverPortNumber + 1

// overflow returns the virtual server beside i that hashes.
func (i serverID) overflow() serverID {
	i.Addr = netip.AddrPortFrom(i.Addr.Addr(), overflowPortNumber)
	return i
}

// withOverflow are a virtual server and the one beside it.
func (i serverID) withOverflow() [2]serverID { return [...]serverID{i, i.overflow()} }

// overflowSchedulers are those for the virtual servers that hash, the best first. Of mh a change
// of one endpoint moves few clients.
var overflowSchedulers = []string{"mh", "sh"}

// overflowServer is the virtual server beside v.
func (s *state) overflowServer(v *virtualServer) *virtualServer {
	for _, name := range overflowSchedulers {
		if has, tried := s.schedulers[name]; has || !tried {
			return &virtualServer{sched: name, reals: v.reals}
		}
	}
	return &virtualServer{sched: "rr", reals: v.reals}
}

// tryOverflow finds out which scheduler the virtual servers that hash can have.
func (d *Datapath) tryOverflow(ctx context.Context) error {
	for _, name := range overflowSchedulers {
		if err := d.probeScheduler(ctx, name); err != nil || d.schedulers[name] {
			return err
		}
	}
	d.cfg.Log.Warn("the kernel lacks the IPVS schedulers that hash: where a Service has more clients with affinity than are remembered, the others have none [modprobe ip_vs_mh]",
		"schedulers", overflowSchedulers)
	return nil
}

// affinityServers is the map from a virtual server to the class whose rules let its clients in.
const affinityServers nftset.Set = "affinity-servers"

// A durationClass is a time for which clients are counted: that of their affinity, or longer.
type durationClass struct {
	Seconds int
	Few     bool
}

// durations are the classes, the shortest first. No affinity lasts longer than a day.
var durations = []int{60, 600, 3600, 10800, 86400}

func durationClasses() (all []durationClass) {
	for _, seconds := range durations {
		all = append(all, durationClass{seconds, false}, durationClass{seconds, true})
	}
	return all
}

// clients is how many clients the class remembers.
func (c durationClass) clients() int {
	if c.Few {
		return fewClients
	}
	return manyClients
}

// Burst and PerDay are the two halves of them: those let in at once, and those in the course of the time.
func (c durationClass) Burst() int { return c.clients() / 2 }

// PerDay is the second half, for a day.
func (c durationClass) PerDay() int {
	return c.clients() / 2 * int(24*time.Hour/time.Second) / c.Seconds
}

// Chain is the name of the class's chain.
func (c durationClass) Chain() string {
	if c.Few {
		return fmt.Sprintf("affinity-%d-few", c.Seconds)
	}
	return fmt.Sprintf("affinity-%d", c.Seconds)
}

// A classID stands for a durationClass in the packet's priority: the seconds, and a bit.
type classID uint32

const classFew classID = 1 << 31

func (c durationClass) id() classID {
	if c.Few {
		return classID(c.Seconds) | classFew
	}
	return classID(c.Seconds)
}

// ID is that of the class as nft reads it.
func (c durationClass) ID() string { return fmt.Sprintf("%x:%x", c.id()>>16, c.id()&0xffff) }

// letsIn returns the class of a virtual server, whose rules let clients in; 0: all may come.
func (i serverID) letsIn(v *virtualServer) classID {
	if v == nil || v.persist == 0 {
		return 0
	}
	at, there := slices.BinarySearch(durations, int(v.persist))
	if !there {
		at = min(at, len(durations)-1)
	}
	return durationClass{durations[at], serverNumber(i.Addr.Addr())&fewServer != 0}.id()
}

// affinityKey is the key of a virtual server: address . protocol.
func (i serverID) affinityKey() []byte {
	return append(i.Addr.Addr().AsSlice(), byte(i.Proto), 0, 0, 0)
}

// affinity plans the elements with the classes of virtual servers.
func (r *changes) affinity(p *changeset, held map[serverID]classID) {
	r.letsIn = map[serverID]classID{}
	for i, is := range r.servers {
		if i.Addr.Port() == serverPortNumber {
			r.letsIn[i] = i.letsIn(is)
		}
	}
	for i, is := range r.letsIn {
		was := held[i]
		w := nft.Write{Set: affinityServers.Name(i.Addr.Addr().Is4()), Key: i.affinityKey(), Del: was != 0, Add: is != 0}
		switch {
		case was == is:
		case w.Add:
			w.Data = nftset.Number(uint32(is))
			p.early = append(p.early, w)
		default:
			p.late = append(p.late, w)
		}
	}
}

// manyClientServers counts the virtual servers of a Service that remember many clients, by family.
type manyClientServers map[bool]int

// mayAssign reports whether a virtual server may have an address.
func (f manyClientServers) mayAssign(p *sharedServer, number uint32) bool {
	return p.persist == 0 || number&fewServer != 0 || f[p.is4] < fullServers
}

// noteAssigned notes that it has it.
func (f manyClientServers) noteAssigned(p *sharedServer) {
	if p.persist > 0 && serverNumber(p.at.Addr())&fewServer == 0 {
		f[p.is4]++
	}
}
