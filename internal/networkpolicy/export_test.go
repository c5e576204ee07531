package networkpolicy

import "github.com/fairway-net/fairway/internal/api"

// GrantCosts returns the costs of all namespaces' policies for MaxGrants, with all classes that the kernel has.
func (c *Compiler) GrantCosts() map[string]int {
	all := map[string]int{}
	for p := range c.usedPolicies {
		if p.cluster == nil {
			all[p.name.Namespace] += p.grants(c.namespace(p.name.Namespace).blockCosts, func(t *term) classCount { return t.used })
		}
	}
	return all
}

// NamespaceOf returns the namespace of the pod that has an address of this node.
func (c *Compiler) NamespaceOf(t Target) string {
	if at := c.addrs[t.Local]; at != nil && at.owner != nil {
		return at.owner.Name.Namespace
	}
	return api.Name{}.Namespace
}
