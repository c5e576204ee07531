package gateway

// A RoutePolicy gives routes what the Gateway API lacks.
type RoutePolicy struct {
	Meta
	Targets []ObjectRef
}

func (c *Compiler) compileRoutePolicy(ref Ref)                             {}
func (c *Compiler) applyPolicies(unit *routeUnit, all []*entry, f *faults) {}
func (c *Compiler) stalePolicies(route Ref)                                {}
func (c *Compiler) extension(route Ref, ref ObjectRef, all *Filters, f *faults) string {
	return f.unresolve(reasonInvalidKind, "an extension of kind %s is not supported", ref.GroupKind)
}
