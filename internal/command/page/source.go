package page

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/command"
	"github.com/fairway-net/fairway/internal/command/agent"
	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/kube/loadbalancer"
	kubepath "github.com/fairway-net/fairway/internal/kube/path"
	web "github.com/fairway-net/fairway/internal/path/page"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/text"
)

// settingsAge is how long the agents' settings count, which the ConfigMap fairway-agent has.
const settingsAge = time.Minute

// A source answers the page's questions, from the watched objects and from the API server.
type source struct {
	env        command.Env
	connection kube.Connection
	server     string // the API server's URL
	live       *kubepath.Live
	balancers  *loadbalancer.Announced

	mu      sync.Mutex
	tool    *agent.Tool // the agents' settings
	read    time.Time   // of tool
	changes int         // passes that took names
	tables  map[string]madeTable
}

// A madeTable is the table of one node, as long as nothing changes.
type madeTable struct {
	changes int
	tool    *agent.Tool
	table   *service.Table
}

// take returns the Services that changed.
func (s *source) take() []api.Name {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.live.Dirty(): // also a node may have changed
		s.changes++
	default:
	}
	return s.live.Take()
}

// agents returns the agents' settings.
func (s *source) agents(ctx context.Context) (*agent.Tool, error) {
	s.mu.Lock()
	tool, read := s.tool, s.read
	s.mu.Unlock()
	if tool != nil && time.Since(read) < settingsAge {
		return tool, nil
	}
	tool, err := agent.ToolFor(ctx, s.env, s.connection)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tool, s.read = tool, time.Now()
	return tool, nil
}

// facts returns the facts of a node, as its agent has them.
func (s *source) facts(tool *agent.Tool, n kube.Node) service.Facts {
	f := tool.Config.Node(n.Zone, n.Addrs, n.PodCIDRs)
	f.OwnAddrs = service.NewAddrSet(n.Addrs...)
	f.Name, f.Zone = n.Name, n.Zone
	f.Settings.ServiceCIDRs = s.live.Store.ServiceCIDRs()
	f.NodeAddrs = service.NewAddrSet(append(s.live.Store.NodeAddrs(), n.Addrs...)...)
	return service.Facts{Node: f}
}

// table returns the table of a node. Older Services may have taken addresses of a Service, so it needs them all.
func (s *source) table(tool *agent.Tool, facts service.Facts) *service.Table {
	s.mu.Lock()
	changes := s.changes
	made := s.tables[facts.Name]
	s.mu.Unlock()
	if made.table != nil && made.changes == changes && made.tool == tool {
		return made.table
	}
	made = madeTable{changes, tool, s.live.Table(facts)}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tables = map[string]madeTable{facts.Name: made} // one is enough for one person
	return made.table
}

// View implements web.Source.
func (s *source) View(ctx context.Context, name api.Name, node, from string) (*web.View, error) {
	if err := s.live.Store.Unread(false, advice); err != nil {
		return nil, err
	}
	select {
	case <-s.live.Synced():
	default:
		return nil, fmt.Errorf("the Services are not read yet [try again in a moment]")
	}
	svc, ok := s.live.Service(name)
	if !ok {
		return nil, nil
	}
	origins, err := service.ParseOrigins(from)
	if err != nil {
		return nil, err
	}
	tool, err := s.agents(ctx)
	if err != nil {
		return nil, err
	}
	at, known := s.node(node)
	if node != "" && !known {
		return nil, fmt.Errorf("there is no node %q [kubectl get nodes lists them]", node)
	}
	eps := s.live.Slices(name)
	facts := s.facts(tool, at)
	around := s.live.Around(ctx, svc)
	v := &web.View{
		Service: row(svc, eps, nil), Selector: labels(svc.Selector), Node: at.Name, Zone: at.Zone, From: string(origins[0]), Events: events(around.Events),
	}
	report := service.NewReport(svc.Service, eps, facts, s.table(tool, facts).Entry(name), origins[:1])
	var more int
	if v.Groups, more = groups(report, health{around.Pods, eps}); more > 0 {
		v.Findings = append(v.Findings, fmt.Sprintf("%d more addresses are not shown", more))
	}
	if len(report.Frontends) == 0 && svc.ExternalName == "" {
		v.Groups = []web.Group{headless(eps, health{around.Pods, eps})}
	}
	for _, p := range report.Problems {
		v.Findings = append(v.Findings, p.Message)
	}
	if v.Service.Finding != "" && !slices.Contains(v.Findings, v.Service.Finding) {
		v.Findings = append(v.Findings, v.Service.Finding)
	}
	unread := around.Problems
	if v.Policies, err = s.policies(ctx, tool, around, eps); err != nil {
		unread = append(unread, err)
	}
	if svc.Type == loadBalancer {
		if v.Announced, err = s.announced(ctx, name); err != nil {
			unread = append(unread, err)
		}
	}
	for _, err := range unread {
		v.Unread = append(v.Unread, text.OneLine(err).Error())
	}
	return v, nil
}

// labels writes a selector as kubectl does.
func labels(m map[string]string) string {
	all := make([]string, 0, len(m))
	for k, v := range m {
		all = append(all, k+"="+v)
	}
	slices.Sort(all)
	return strings.Join(all, ",")
}

// announced returns the announcers of a Service's addresses.
func (s *source) announced(ctx context.Context, name api.Name) (out []web.Announced, err error) {
	all, err := s.balancers.Report(ctx, name.String())
	if err != nil {
		return nil, err
	}
	for _, a := range all.Addresses {
		if !slices.Contains(a.Services, name.String()) {
			continue
		}
		x := web.Announced{Address: a.Address, Reason: a.Reason, By: []web.Announce{}, Elsewhere: []web.Announce{}}
		for _, n := range a.Announced {
			x.By = append(x.By, web.Announce{Node: n.Node, Protocol: string(n.Protocol), Since: n.Since, Through: n.By})
		}
		for _, n := range a.Elsewhere {
			e := web.Announce{Node: n.Node, Protocol: string(n.Protocol), Since: n.Since, Reason: n.Reason}
			if n.Peer != "" {
				e.Through = []string{n.Peer}
			}
			x.Elsewhere = append(x.Elsewhere, e)
		}
		out = append(out, x)
	}
	return out, nil
}
