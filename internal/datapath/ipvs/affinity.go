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

// Session affinity. IPVS remembers each client of a persistent virtual server by a template until the affinity ends.
// Only memory limits the number of templates. So a rule must admit each new client, up to a number of clients of the
// virtual server. Further clients are sent to an overflow server, at the address of the virtual server and the next
// port. It hashes the client's address, so these clients also stay at their endpoint until the endpoints change.
// docs/decisions/0040-affinity-in-iptables-and-ipvs.md gives the reasons.

// The first fullServers virtual servers of a Service and family remember manyClients each. The others remember
// fewClients each, and their numbers have the bit fewServer. So 64 Services fill the set of clients, whose size is
// 4,194,304. When the set is full, all new clients go to overflow servers.
const (
	manyClients = 1 << 14
	fewClients  = 1 << 8
	fullServers = 4
	fewServer   = 1 << 21
)

// overflowPortNumber is the port of overflow servers.
const overflowPortNumber = serverPortNumber + 1

// overflow returns the overflow server of i.
func (i serverID) overflow() serverID {
	i.Addr = netip.AddrPortFrom(i.Addr.Addr(), overflowPortNumber)
	return i
}

// withOverflow returns i and its overflow server.
func (i serverID) withOverflow() [2]serverID { return [...]serverID{i, i.overflow()} }

// overflowSchedulers are schedulers for overflow servers, the best first. With mh a change of one endpoint moves few
// clients.
var overflowSchedulers = []string{"mh", "sh"}

// overflowServer returns the overflow server of v.
func (s *state) overflowServer(v *virtualServer) *virtualServer {
	for _, name := range overflowSchedulers {
		if has, tried := s.schedulers[name]; has || !tried {
			return &virtualServer{sched: name, reals: v.reals}
		}
	}
	return &virtualServer{sched: "rr", reals: v.reals}
}

// tryOverflow finds out which scheduler overflow servers can have.
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

// affinityServers is the map from a virtual server to the class whose rules admit its clients.
const affinityServers nftset.Set = "affinity-servers"

// A durationClass is a time and a number of clients. The time is the affinity of the class's virtual servers, or
// longer.
type durationClass struct {
	Seconds int
	Few     bool
}

// durations are the times of the classes, sorted. No affinity is longer than a day.
var durations = []int{60, 600, 3600, 10800, 86400}

func durationClasses() (all []durationClass) {
	for _, seconds := range durations {
		all = append(all, durationClass{seconds, false}, durationClass{seconds, true})
	}
	return all
}

// clients returns how many clients the class admits in its time.
func (c durationClass) clients() int {
	if c.Few {
		return fewClients
	}
	return manyClients
}

// Burst returns the number of clients that are admitted at once: one half.
func (c durationClass) Burst() int { return c.clients() / 2 }

// PerDay returns the rate at which the other half is admitted, in clients a day.
func (c durationClass) PerDay() int {
	return c.clients() / 2 * int(24*time.Hour/time.Second) / c.Seconds
}

// Chain returns the name of the class's chain.
func (c durationClass) Chain() string {
	if c.Few {
		return fmt.Sprintf("affinity-%d-few", c.Seconds)
	}
	return fmt.Sprintf("affinity-%d", c.Seconds)
}

// A classID is a durationClass in the packet's priority: the seconds, and a bit for Few.
type classID uint32

const classFew classID = 1 << 31

func (c durationClass) id() classID {
	if c.Few {
		return classID(c.Seconds) | classFew
	}
	return classID(c.Seconds)
}

// ID returns the class ID in nft's notation.
func (c durationClass) ID() string { return fmt.Sprintf("%x:%x", c.id()>>16, c.id()&0xffff) }

// class returns the class of a virtual server. 0: every client may come, because the server has no affinity.
func (i serverID) class(v *virtualServer) classID {
	if v == nil || v.persist == 0 {
		return 0
	}
	at, there := slices.BinarySearch(durations, int(v.persist))
	if !there {
		at = min(at, len(durations)-1)
	}
	return durationClass{durations[at], serverNumber(i.Addr.Addr())&fewServer != 0}.id()
}

// affinityKey returns the key of a virtual server: address . protocol.
func (i serverID) affinityKey() []byte {
	return append(i.Addr.Addr().AsSlice(), byte(i.Proto), 0, 0, 0)
}

// affinity plans the elements with the classes of virtual servers.
func (r *changes) affinity(p *changeset, held map[serverID]classID) {
	r.classes = map[serverID]classID{}
	for i, is := range r.servers {
		if i.Addr.Port() == serverPortNumber {
			r.classes[i] = i.class(is)
		}
	}
	for i, is := range r.classes {
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

// manyClientServers counts the virtual servers of a Service that remember manyClients, by family.
type manyClientServers map[bool]int

// mayAssign reports whether a virtual server may get the address with a number.
func (f manyClientServers) mayAssign(p *sharedServer, number uint32) bool {
	return p.persist == 0 || number&fewServer != 0 || f[p.is4] < fullServers
}

// noteAssigned counts the virtual server p, which has got its address.
func (f manyClientServers) noteAssigned(p *sharedServer) {
	if p.persist > 0 && serverNumber(p.at.Addr())&fewServer == 0 {
		f[p.is4]++
	}
}
