// A page that leads on.
import { themeSwitch } from "./shell.js";

themeSwitch();
