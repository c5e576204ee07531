package proxy

import (
	"slices"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
)

// What one pass does at most for Services that are large or change much: so long do all
// others wait. Large Services are compiled beside the loop. A pass that gets some programs
// little of them, and the next pass gets none.
const (
	smallSize  = 2000   // as service.Work counts: what is more is compiled beside the loop
	buildSize  = 20_000 // as service.Work counts: so much is compiled for one pass, or one Service
	stepSize   = 500    // as service.Step counts
	stepBeside = stepSize / 10
	listStep   = 50 // as service.StepLists counts, where a program writes: all wait for as long as it runs
)

// build makes a new table of what changed, but for large Services: of these it takes what was
// compiled meanwhile.
func (l *Loop) build() {
	now := l.cfg.View()
	if l.builder == nil {
		l.builder = service.NewBuilder().Limit(now.Limits)
	}
	names := l.cfg.Source.Take()
	for _, t := range l.cfg.Source.Triggers() {
		l.triggers = append(l.triggers, t)
	}
	all := !now.CompilesLike(l.node)
	names = append(names, l.viewed(now, all)...)
	l.node = now
	names = slices.Concat(l.compileSmall(names), l.collect(), l.buildHostPorts(all))
	l.table = l.builder.Table(now.Settings)
	for _, n := range names {
		e := l.table.Entry(n)
		l.cfg.Metrics.compiled(n, e)
		if e != nil {
			l.cfg.Report(n, e.Problems)
		} else {
			l.cfg.Report(n, nil)
		}
	}
	l.compileBeside()
}

// viewed returns the Services that must be compiled again because the view is another: all of
// them, or those that it concerns.
func (l *Loop) viewed(now service.Node, all bool) (names []api.Name) {
	refuses, dead := !now.RefusesLike(l.node), now.DeadUnlike(l.node)
	if !all && !refuses && len(dead) == 0 {
		return nil
	}
	for e := range l.table.Entries() {
		if _, pod := service.HostPodOf(e.Name); !pod && (all || refuses && e.DependsOnAddresses() || len(dead) > 0 && e.HasEndpointsOn(dead)) {
			names = append(names, e.Name)
		}
	}
	if l.beside != nil { // these are compiled for the former view
		for n := range l.beside.names {
			names = append(names, n)
		}
		clear(l.beside.names)
	}
	return names
}

// An input is what a Service is compiled from, as it is now.
type input struct {
	name   api.Name
	svc    *service.Service // nil: it is gone
	slices []*service.Slice
}

func (l *Loop) read(n api.Name) input {
	svc, ok := l.cfg.Source.Service(n)
	if !ok {
		return input{name: n}
	}
	return input{n, svc, l.cfg.Source.Slices(n)}
}

// work returns about how much it costs to compile the Service.
func (in input) work() int {
	if in.svc == nil {
		return 0
	}
	return service.Work(in.svc, in.slices)
}

// compileSmall compiles those of the Services that are compiled in this pass, and puts the large
// ones into the backlog. It returns the names of the former.
func (l *Loop) compileSmall(names []api.Name) (compiled []api.Name) {
	waits := make(map[api.Name]struct{}, len(l.backlog))
	for _, n := range l.backlog {
		waits[n] = struct{}{}
	}
	for _, n := range names {
		in := l.read(n)
		// What is not in the first table would be removed from the kernel.
		if _, ok := waits[n]; l.carried == nil || in.work() <= smallSize {
			l.compile(in)
			compiled = append(compiled, n)
			delete(waits, n) // it was large, or is gone: nobody tells us again
		} else if !ok {
			l.backlog = append(l.backlog, n)
			waits[n] = struct{}{}
		}
	}
	if len(waits) < len(l.backlog) {
		l.backlog = slices.DeleteFunc(slices.Clone(l.backlog), func(n api.Name) bool { _, ok := waits[n]; return !ok })
	}
	return compiled
}

func (l *Loop) compile(in input) {
	if l.beside != nil {
		delete(l.beside.names, in.name) // it is older
	}
	if in.svc == nil {
		l.builder.Delete(in.name)
		return
	}
	l.builder.Set(service.Compile(in.svc, in.slices, l.node))
}

// A compilation is of large Services, by a goroutine of its own.
type compilation struct {
	names map[api.Name]struct{} // whose entries count; the loop's
	done  chan []*service.Entry // receives once
}

// compileBeside begins to compile the first large Services of the backlog, one or as many as
// are quickly compiled, unless some are being compiled.
func (l *Loop) compileBeside() {
	if l.beside != nil || len(l.backlog) == 0 {
		return
	}
	c := &compilation{names: map[api.Name]struct{}{}, done: make(chan []*service.Entry, 1)}
	var jobs []func() *service.Entry
	sum, taken := 0, 0
	for _, n := range l.backlog {
		in := l.read(n)
		if sum += in.work(); sum > buildSize && taken > 0 {
			break
		}
		taken++
		if in.svc == nil {
			continue // a later pass is told, and finds it small
		}
		was, node := l.table.Entry(n), l.node
		c.names[n] = struct{}{}
		jobs = append(jobs, func() *service.Entry { return service.Compile(in.svc, in.slices, node).Sharing(was) })
	}
	l.backlog = slices.Clone(l.backlog[taken:])
	l.beside = c
	go func() {
		entries := make([]*service.Entry, len(jobs))
		for i, compile := range jobs {
			entries[i] = compile()
		}
		c.done <- entries
		select {
		case l.built <- struct{}{}:
		default: // the loop is woken already
		}
	}()
}

// collect takes what was compiled beside the loop, if it is done, in every second pass. It
// returns the names.
func (l *Loop) collect() (names []api.Name) {
	took := l.large
	l.large = false
	if l.beside == nil || took {
		return nil
	}
	select {
	case entries := <-l.beside.done:
		for _, e := range entries {
			if _, counts := l.beside.names[e.Name]; counts {
				l.builder.Set(e)
				names = append(names, e.Name)
			}
		}
		l.beside, l.large = nil, true
	default:
	}
	return names
}

// abandon waits until nothing is compiled beside the loop.
func (l *Loop) abandon() {
	if l.beside != nil {
		<-l.beside.done
		l.beside = nil
	}
}
