"""Pages that show the document: by Swagger UI and Redoc, or without any file from elsewhere."""

_SWAGGER = "https://cdn.jsdelivr.net/npm/swagger-ui-dist@5"
_REDOC = "https://cdn.jsdelivr.net/npm/redoc@2/bundles/redoc.standalone.js"

SWAGGER_PAGE = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>ortloom</title>
<link rel="stylesheet" href="{_SWAGGER}/swagger-ui.css"></head>
<body><div id="swagger-ui"></div>
<script src="{_SWAGGER}/swagger-ui-bundle.js"></script>
<script>SwaggerUIBundle({{url: "openapi.json", dom_id: "#swagger-ui"}});</script>
</body></html>
"""

REDOC_PAGE = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>ortloom</title></head>
<body><redoc spec-url="openapi.json"></redoc><script src="{_REDOC}"></script></body></html>
"""

OFFLINE_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>ortloom</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
summary { cursor: pointer; padding: .3rem 0 } code { font-weight: 600 }
pre { background: #8881; padding: .7rem; overflow: auto }
</style></head>
<body><h1>ortloom</h1><main>loading</main>
<script>
const element = (name, text) => {
  const made = document.createElement(name);
  made.textContent = text;
  return made;
};
const show = (spec) => {
  const main = document.querySelector("main");
  main.textContent = "";
  const part = (title, value) => {
    const details = document.createElement("details");
    details.append(element("summary", title));
    details.append(element("pre", JSON.stringify(value, null, 2)));
    return details;
  };
  for (const [path, methods] of Object.entries(spec.paths)) {
    for (const [method, operation] of Object.entries(methods)) {
      const details = document.createElement("details");
      const summary = document.createElement("summary");
      summary.append(element("code", method.toUpperCase() + " " + path));
      summary.append(" " + operation.summary);
      details.append(summary);
      for (const name of ["parameters", "requestBody", "responses"]) {
        if (operation[name]) details.append(part(name, operation[name]));
      }
      main.append(details);
    }
  }
  main.append(element("h2", "Types"));
  for (const [name, schema] of Object.entries(spec.components.schemas)) {
    main.append(part(name, schema));
  }
};
fetch("openapi.json").then((reply) => reply.json()).then(show);
</script>
</body></html>
"""
