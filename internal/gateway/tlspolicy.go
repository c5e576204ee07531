package gateway

func (c *Compiler) compileTLSPolicy(ref Ref) {}

func (c *Compiler) backendTLS(route Ref, service *Service, port *ServicePort) (*BackendTLS, string) {
	return nil, ""
}
